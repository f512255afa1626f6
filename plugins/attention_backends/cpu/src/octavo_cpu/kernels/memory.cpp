// Advice to the system about memory.
//
// Owns: that. Must never know: what is kept there.

#include "api.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

extern "C" void octavo_advise_huge_pages(void* memory, int64_t num_bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE)), start = uintptr_t(memory);
  const uintptr_t from = (start + page - 1) / page * page, to = (start + uintptr_t(num_bytes)) / page * page;
  if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);  // if it cannot, nothing is lost
#else
  (void)memory, (void)num_bytes;
#endif
}
