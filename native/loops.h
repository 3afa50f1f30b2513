// Loops over numbers, plain ones that compilers vectorise. Included once for each instruction set, into a
// namespace of its own. thinwire.kernels.reference says what they compute; every float operation and its order is
// the same there, so results are equal bit for bit (build with -ffp-contract=off).
//
// Quantisers go through blocks of 512 symbols that stay in the first-level cache: quantise into bytes, then pack.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels.h"

namespace thinwire {
namespace THINWIRE_VARIANT {
namespace {

constexpr uint32_t kSign = 0x80000000u, kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u, kNan = 0x7fc00000u;
constexpr float kLargest = 3.4028234663852886e38f;

inline uint32_t to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

inline float to_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline uint32_t hash32(Draw draw, uint32_t position) {
    uint32_t x = draw.low + position;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x ^= draw.high;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

// All ones where the condition holds. Choices are made with masks: a conditional that hides a float operation keeps
// compilers from vectorising a loop, as the operation might trap.
inline int32_t mask_of(bool condition) { return -static_cast<int32_t>(condition); }

inline int32_t select(int32_t mask, int32_t yes, int32_t no) { return no ^ ((yes ^ no) & mask); }

inline float uniform24(uint32_t bits) { return static_cast<float>(static_cast<int32_t>(bits >> 8)) * 0x1p-24f; }

// Ask for the block that a later pass will read first: reading for the scale and computing codes then overlap. What is
// not read soon stays in the second cache, so that it does not drive out what is.
template <bool Near>
inline void fetch_block(const float *x) {
#if defined(__GNUC__)
    for (size_t i = 0; i < kBlock; i += 16) __builtin_prefetch(x + i, 0, Near ? 3 : 2);
#else
    (void)x;
#endif
}

#include "quantise_pack.h"
#include "quantise_sums.h"
#include "quantise_levels.h"
#include "quantise_schemes.h"
#include "quantise_range.h"
#include "share_loops.h"
#include "cast_loops.h"
#include "lane_loops.h"
#include "stream_stores.h"
#include "basis_loops.h"
#include "scatter_loops.h"
#include "select_loops.h"
#include "wide_registers.h"
#include "fourier_loops.h"
#include "unfold_loops.h"

}  // namespace

const Kernels table = {encode,       decode,       range_encode,  range_decode,  repack,       sum_of_squares,
                       clip,         share,        magnitude,     shorten,       lengthen,     lanes_encode,
                       lanes_decode, basis_project, basis_rebuild, scatter,      collect,      collect_band,
                       count_around, write_choice, importances,   squared_lengths, pairs_of_rows, rows_of_pairs};

}  // namespace THINWIRE_VARIANT
}  // namespace thinwire
