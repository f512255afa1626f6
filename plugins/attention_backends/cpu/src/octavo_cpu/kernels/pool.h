// Threads that share out the items of a loop.
//
// Owns: threads, and who does which item. Must never know: what an item is.
//
// Items are claimed one by one, and whoever asks for a loop works on it too. So a thread that the system does not run
// just now holds nobody up: the others do its share, where a barrier of all threads would wait for it. Idle threads
// look for work for a moment and then sleep. A forked child starts threads of its own.

#pragma once

#include <memory>

namespace octavo {

/// Do `run(context, item)` for all items from 0 to `num_items`, in no particular order.
void for_each_item(long num_items, void (*run)(const void* context, long item), const void* context);

template <class Function>
void parallel(long num_items, const Function& function) {
  for_each_item(num_items, [](const void* f, long item) { (*static_cast<const Function*>(f))(item); }, &function);
}

/// Threads that work on a loop, the caller included.
int num_threads();

/// Memory of this thread that is kept from call to call, for at least `size` elements; `Tag` tells uses apart.
template <class T, class Tag>
T* scratch(long size) {
  static thread_local std::unique_ptr<T[]> memory;
  static thread_local long capacity = 0;
  if (size > capacity) {
    memory.reset(new T[size]);
    capacity = size;
  }
  return memory.get();
}

}  // namespace octavo
