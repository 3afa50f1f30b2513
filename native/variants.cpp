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

const Kernels *best() { return avx2_kernels() && has_avx2() ? avx2_kernels() : baseline_kernels(); }

const Kernels *chosen = best();

}  // namespace

const Kernels &kernels() { return *chosen; }

bool use_variant(const std::string &name) {
    const Kernels *wanted = name == "baseline" ? baseline_kernels() : name == "avx2" ? avx2_kernels() : nullptr;
    if (!wanted || (wanted == avx2_kernels() && best() != wanted)) return false;
    chosen = wanted;
    return true;
}

}  // namespace thinwire
