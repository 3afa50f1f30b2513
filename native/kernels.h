// Which loops exist and what they take; each is compiled once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace thinwire {

constexpr size_t kBlock = 512;  // symbols of one pack block

enum class Scheme { uniform, exponential, levels, sign };

// Where symbols live outside a block: packed bytes, or plain symbols (uint8 up to 8 bits, int32 above).
struct Symbols {
    uint8_t *packed = nullptr;
    uint8_t *narrow = nullptr;
    int32_t *wide = nullptr;
};

struct Scaled {
    Scheme scheme;
    int bits;
    size_t bucket;
    bool l2;
    const float *levels;  // table of `Scheme::levels`
    int level_count;
    float share = 1.0f;  // what numbers are multiplied by before they are encoded, a power of two
    float sign = 1.0f;   // what scales are multiplied by before they are decoded, 1 or -1
};

// Range floats: the smallest key and the number of codes on each side of zero.
struct Range {
    int bits;
    int mantissa;
    int32_t base;
    int32_t positives;
    int32_t negatives;
    bool stochastic;
};

struct Draw {
    uint32_t low;    // of the key, plus the position of element 0
    uint32_t high;   // of the key
};

// Integers of `bits` bits in `count` lanes. On the way in, x / ranks * lift * factor is rounded to within +-levels; on
// the way out, an integer is multiplied by factor and by lift.
struct Lanes {
    int bits;
    size_t count;
    int32_t levels;
    float lift;
    float factor;
    uint32_t ranks;
};

// Columns of a basis; each row of the matrix is filled up with zeros to a multiple of 8 numbers. It is [length, kept]
// for projecting, and its transpose for the way back.
struct Basis {
    const float *columns;
    size_t length;
    size_t kept;
};

// Numbers whose keys are compared: v, or with weights w their importances, |v| / (|w| + floor) * ranks.
struct Importances {
    const float *v, *w;
    float floor, ranks;
};

// A real FFT of `length` numbers, a power of two: the roots of unity of its passes, those that unfold half a transform
// into bins, and the scales of pairs, of the two real bins, and of what is twice a pair.
struct Fourier {
    size_t length;
    const float *roots, *unfolding;
    float pair, real, half;
    uint32_t ranks;  // by which numbers are divided on their way into a spectrum
};

struct Kernels {
    void (*encode)(const Scaled &, const float *x, size_t n, Draw, uint8_t *scales, Symbols to);
    void (*decode)(const Scaled &, const uint8_t *scales, Symbols from, float *out, size_t n, bool add);
    int64_t (*range_encode)(const Range &, const float *x, size_t n, Draw, Symbols to);
    void (*range_decode)(const Range &, Symbols from, float *out, size_t n, bool add);
    void (*repack)(Symbols from, int bits, size_t n, Symbols to);
    double (*sum_of_squares)(const float *x, size_t n);
    void (*clip)(const float *x, size_t n, size_t bucket, double factor, float *out);
    bool (*share)(const float *x, size_t n, uint32_t ranks, const float *residual, float *out);
    uint32_t (*magnitude)(const float *x, size_t n);
    void (*shorten)(bool brain, const float *x, size_t n, uint8_t *out);
    void (*lengthen)(bool brain, const uint8_t *in, size_t n, float *out, bool add);
    void (*lanes_encode)(const Lanes &, const float *x, size_t n, Draw, size_t begin, size_t end, int32_t *lanes);
    void (*lanes_decode)(const Lanes &, const int32_t *lanes, size_t n, size_t begin, size_t end, float *out, bool add);
    void (*basis_project)(const Basis &, const float *x, size_t rows, const float *offset, float part, float *out);
    void (*basis_rebuild)(const Basis &, const float *q, size_t rows, const float *mean, float part, const float *given,
                          float *out);
    void (*scatter)(const float *given, size_t n, const int64_t *at, const float *values, size_t count, float *out);
    size_t (*collect)(const Importances &, size_t n, uint32_t low, uint32_t *where, uint32_t *keys, size_t room);
    size_t (*collect_band)(const float *x, size_t n, uint32_t low, uint32_t high, uint32_t *band, size_t room,
                           size_t *above);
    void (*count_around)(const float *x, size_t n, uint32_t key, size_t *above, size_t *equal);
    void (*write_choice)(const float *x, size_t n, uint32_t key, size_t ties, int64_t *out, size_t k);
    void (*importances)(const Importances &, size_t n, float *out);
    uint32_t (*squared_lengths)(const float *pairs, size_t n, float *out);
    // With work memory for three rows.
    void (*pairs_of_rows)(const Fourier &, const float *rows, size_t count, const float *owed, float *work, float *out);
    void (*rows_of_pairs)(const Fourier &, const float *pairs, size_t count, float *work, float *out);
};

// nullptr where the compiler cannot build that variant.
const Kernels *baseline_kernels();
const Kernels *avx2_kernels();
const Kernels *avx512_kernels();

// The variant that runs: the best one for this machine, unless a test has chosen another.
const Kernels &kernels();
bool use_variant(const std::string &name);

}  // namespace thinwire
