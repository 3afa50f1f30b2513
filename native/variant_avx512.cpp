// The same kernels for AVX-512; chosen at run time. As with AVX2, the standard headers come first.
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
#define THINWIRE_AVX512
#endif

#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,f16c"))), \
                             apply_to = function)
#define THINWIRE_VARIANT avx512
#include "loops.h"
#pragma clang attribute pop
#elif defined(__x86_64__) && defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // intrinsics of GCC 12 start from undefined registers
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,f16c,prefer-vector-width=512")
#define THINWIRE_VARIANT avx512
#include "loops.h"
#pragma GCC pop_options
#endif

#ifdef THINWIRE_VARIANT
const thinwire::Kernels *thinwire::avx512_kernels() { return &thinwire::avx512::table; }
#else
const thinwire::Kernels *thinwire::avx512_kernels() { return nullptr; }
#endif
