// See pool.h.

#include "pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#include <pthread.h>

#include "api.h"

namespace octavo {
namespace {

constexpr auto kPatience = std::chrono::microseconds(200);  // how long an idle thread looks for work before it sleeps
constexpr int kLooks = 64;                                  // looks between two readings of the clock

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// The loop that is going on. `ticket` is its number and, in the lower half, how many items nobody has claimed yet.
/// Whoever claims one may read the rest, for the loop does not end before that item is done.
struct Loop {
  std::atomic<uint64_t> ticket{0};
  std::atomic<long> num_open{0};  // items that are not done
  void (*run)(const void*, long);
  const void* context;
};

class Pool {
 public:
  void resize(int num_threads) {
    std::lock_guard<std::mutex> guard(busy_);
    size_ = std::max(1, num_threads);
  }

  int size() const { return size_; }

  void run(long num_items, void (*function)(const void*, long), const void* context) {
    std::unique_lock<std::mutex> guard(busy_, std::defer_lock);
    // Another engine's loop is not waited for: its threads would not be free anyway.
    if (size_ == 1 || num_items == 1 || !guard.try_lock()) {
      for (long item = 0; item < num_items; item++) function(context, item);
      return;
    }
    for (long start = 0; start < num_items; start += UINT32_MAX) {
      const uint32_t count = uint32_t(std::min<long>(num_items - start, UINT32_MAX));
      const uint64_t number = (loop_.ticket.load(std::memory_order_relaxed) >> 32) + 1;
      loop_.run = function;
      loop_.context = context;
      loop_.num_open.store(count, std::memory_order_relaxed);
      loop_.ticket.store(number << 32 | count, std::memory_order_seq_cst);
      wake(int(std::min<long>(size_, count)) - 1);
      work(number);
      while (loop_.num_open.load(std::memory_order_acquire) != 0) wait_a_little();
    }
  }

 private:
  void work(uint64_t number) {
    uint64_t ticket = loop_.ticket.load(std::memory_order_acquire);
    while (ticket >> 32 == number && uint32_t(ticket) != 0)
      if (loop_.ticket.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) {
        loop_.run(loop_.context, long(uint32_t(ticket)) - 1);
        loop_.num_open.fetch_sub(1, std::memory_order_release);
        ticket = loop_.ticket.load(std::memory_order_acquire);
      }
  }

  void wake(int num_helpers) {
    while (num_started_ < num_helpers && can_start_) try {
        std::thread([this, id = num_started_] { serve(id); }).detach();
        num_started_++;
      } catch (const std::system_error&) {
        can_start_ = false;  // the system has no more: those that there are do its share
      }
    if (num_asleep_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> guard(sleep_);
      bell_.notify_all();
    }
  }

  /// The life of a helper thread.
  void serve(int id) {
    uint64_t seen = 0;
    for (;;) {
      const auto start = std::chrono::steady_clock::now();
      uint64_t ticket;
      for (int looks = 1;; looks++) {
        ticket = loop_.ticket.load(std::memory_order_acquire);
        if (ticket >> 32 != seen) break;
        relax();
        if (looks % kLooks == 0 && std::chrono::steady_clock::now() - start > kPatience) {
          std::unique_lock<std::mutex> guard(sleep_);
          num_asleep_.fetch_add(1, std::memory_order_seq_cst);
          bell_.wait(guard, [&] { return loop_.ticket.load(std::memory_order_seq_cst) >> 32 != seen; });
          num_asleep_.fetch_sub(1, std::memory_order_seq_cst);
          ticket = loop_.ticket.load(std::memory_order_acquire);
          break;
        }
      }
      seen = ticket >> 32;
      if (id + 1 < size_) work(seen);
    }
  }

  static void wait_a_little() {
    for (int i = 0; i < kLooks; i++) relax();
    std::this_thread::yield();  // whoever does the last item may need this core
  }

  Loop loop_;
  std::mutex busy_, sleep_;
  std::condition_variable bell_;
  std::atomic<int> num_asleep_{0}, size_{1};
  int num_started_ = 0;
  bool can_start_ = true;
};

/// Never destroyed: its threads end with the process. A forked child, which has none of them, begins anew.
Pool*& instance() {
  static Pool* pool = [] {
    pthread_atfork(nullptr, nullptr, [] {
      const int size = instance()->size();
      instance() = new Pool;
      instance()->resize(size);
    });
    return new Pool;
  }();
  return pool;
}

Pool& pool() { return *instance(); }

}  // namespace

void for_each_item(long num_items, void (*run)(const void*, long), const void* context) {
  if (num_items > 0) pool().run(num_items, run, context);
}

int num_threads() { return pool().size(); }

}  // namespace octavo

extern "C" void octavo_set_num_threads(int64_t num_threads) { octavo::pool().resize(int(num_threads)); }
