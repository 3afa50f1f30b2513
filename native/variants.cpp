// Which loops run on this machine.
#include <string>

#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

namespace thinwire {
namespace {

bool has_avx2() {
#if defined(__x86_64__) && defined(__GNUC__)
    unsigned a, b, c, d;
    const bool halves = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    return halves && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
#else
    return false;
#endif
}

// Machines without VBMI2 are those that slow down when they use wide registers.
bool has_avx512() {
#if defined(__x86_64__) && defined(__GNUC__)
    return has_avx2() && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi2");
#else
    return false;
#endif
}

// The variant of this name; nullptr where the compiler or this machine does not have it.
const Kernels *variant(const std::string &name) {
    if (name == "avx512") return has_avx512() ? avx512_kernels() : nullptr;
    if (name == "avx2") return has_avx2() ? avx2_kernels() : nullptr;
    return name == "baseline" ? baseline_kernels() : nullptr;
}

const Kernels *best() {
    for (const char *name : {"avx512", "avx2"})
        if (const Kernels *found = variant(name)) return found;
    return baseline_kernels();
}

const Kernels *chosen = best();

}  // namespace

const Kernels &kernels() { return *chosen; }

bool use_variant(const std::string &name) {
    const Kernels *wanted = variant(name);
    if (wanted) chosen = wanted;
    return wanted != nullptr;
}

}  // namespace thinwire
