// The same kernels for AVX2; chosen at run time. The standard headers come first: their inline functions must keep
// the instruction set of the build, as the linker may use one copy for the whole program.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define THINWIRE_F16C
#endif

#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,f16c"))), apply_to = function)
#define THINWIRE_VARIANT avx2
#include "loops.h"
#pragma clang attribute pop
#elif defined(__x86_64__) && defined(__GNUC__)
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,f16c")
#define THINWIRE_VARIANT avx2
#include "loops.h"
#pragma GCC pop_options
#endif

#ifdef THINWIRE_VARIANT
const thinwire::Kernels *thinwire::avx2_kernels() { return &thinwire::avx2::table; }
#else
const thinwire::Kernels *thinwire::avx2_kernels() { return nullptr; }
#endif
