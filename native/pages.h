// Memory that is about to be written for the first time.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace thinwire {

// A large fresh buffer costs a fault for each of its pages, several times what filling it costs; huge pages make that
// one in 512. A hint about whole pages inside the buffer, all of which the caller will write; no effect elsewhere.
inline void expect_to_fill(void *begin, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t kPage = 4096;
    constexpr size_t kLarge = 4 << 20;
    if (bytes < kLarge) return;
    const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + kPage - 1) / kPage * kPage;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(begin) + bytes) / kPage * kPage;
    madvise(reinterpret_cast<void *>(first), end - first, MADV_HUGEPAGE);
#else
    (void)begin, (void)bytes;
#endif
}

}  // namespace thinwire
