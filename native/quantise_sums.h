// Sums in float64 in the order of `tree_sum` in the reference: runs of 512 folded in half, sums of runs likewise.

constexpr size_t kRun = 512;

// What is added of a number, of which `share` is a power of two to be multiplied by first.
struct Square {
    float share = 1.0f;
    double of(float x) const {
        const double value = static_cast<double>(x * share);
        return value * value;
    }
};
struct Above {
    float share;
    double of(float x) const {
        const float value = x * share;
        return to_float(to_bits(value) & static_cast<uint32_t>(mask_of(value >= 0.0f)));
    }
};
struct Below {  // NaN counts as below, so that a bucket which holds one is noticed
    float share;
    double of(float x) const {
        const float value = x * share;
        return to_float(to_bits(value) & ~static_cast<uint32_t>(mask_of(value >= 0.0f)));
    }
};

inline size_t power_of_two_from(size_t width) {
    size_t power = 1;
    while (power < width) power *= 2;
    return power;
}

inline void add_to(double *__restrict v, const double *__restrict w, size_t n) {
    for (size_t i = 0; i < n; i++) v[i] += w[i];
}

inline double fold(double *v, size_t width) {
    for (; width > 8; width /= 2) {  // a multiple of 8 leaves no rest to the vector loop
        for (size_t i = 0; i < width / 2; i += 8) add_to(v + i, v + i + width / 2, 8);
    }
    for (size_t h = width / 2; h >= 1; h /= 2)
        for (size_t i = 0; i < h; i++) v[i] += v[i + h];
    return v[0];
}

// Asks for an eighth of a run that is read later. A whole one asked for at once would keep others waiting.
constexpr size_t kLater = 4 * kRun;

inline void fetch_eighth(const float *x) {
#if defined(__GNUC__)
    for (size_t i = 0; i < kRun / 8; i += 16) __builtin_prefetch(x + i);
#else
    (void)x;
#endif
}

template <class F>
inline double sum_full_run(const F f, const float *x) {
    double v[kRun / 8];
    for (size_t eighth = 0; eighth < 8; eighth++) {
        fetch_eighth(x + kLater + eighth * kRun / 8);
        for (size_t i = 8 * eighth; i < 8 * eighth + 8; i++) {  // the first three folds at once
            const double a = (f.of(x[i]) + f.of(x[i + 256])) + (f.of(x[i + 128]) + f.of(x[i + 384]));
            const double b = (f.of(x[i + 64]) + f.of(x[i + 320])) + (f.of(x[i + 192]) + f.of(x[i + 448]));
            v[i] = a + b;
        }
    }
    return fold(v, kRun / 8);
}

// Numbers added up by sign, and how many are not below zero.
struct Halves {
    double below, above, count_above;
};

#ifdef THINWIRE_AVX512
#include "sums_avx512.h"
#endif

// Sum of `count` elements as one node of `width` children that span `span` elements each.
template <class F>
double sum_node(const F f, const float *x, size_t count, size_t span, size_t width) {
    if (span == 1 && count == kRun && width == kRun) return sum_full_run(f, x);
    double v[kRun];
    size_t filled = 0;
    if (span == 1)
        for (; filled < count; filled++) v[filled] = f.of(x[filled]);
    else
        for (size_t at = 0; at < count; at += span) {
            const size_t some = std::min(span, count - at);
            v[filled++] = some == kRun ? sum_full_run(f, x + at) : sum_node(f, x + at, some, span / kRun, kRun);
        }
    for (; filled < width; filled++) v[filled] = 0.0;
    return fold(v, width);
}

// `width` is the length of a whole bucket; the last one may hold fewer elements. The added zero turns -0 into 0.
template <class F>
inline double tree_sum(const F f, const float *x, size_t count, size_t width) {
    size_t span = 1;
    while (span * kRun < width) span *= kRun;
    return sum_node(f, x, count, span, power_of_two_from((width + span - 1) / span)) + 0.0;
}

inline double count_above(const float *x, size_t count, float share) {
    double total = 0.0;
    for (size_t at = 0; at < count; at += kBlock) {
        const size_t end = std::min(at + kBlock, count);
        int32_t found = 0;
        for (size_t i = at; i < end; i++) found -= mask_of(x[i] * share >= 0.0f);
        total += found;
    }
    return total;
}

inline Halves sum_halves(const float *x, size_t count, size_t width, float share) {
#ifdef THINWIRE_AVX512
    if (count == kRun && width == kRun) return halves_of_run(x, share);
#endif
    return {tree_sum(Below{share}, x, count, width), tree_sum(Above{share}, x, count, width),
            count_above(x, count, share)};
}

double sum_of_squares(const float *x, size_t n) { return tree_sum(Square{}, x, n, n); }

inline float capped(double value) { return static_cast<float>(std::min(value, static_cast<double>(kLargest))); }

inline uint32_t largest_magnitude(const float *x, size_t n) {
    int32_t largest = 0;
    for (size_t i = 0; i < n; i++) largest = std::max(largest, static_cast<int32_t>(to_bits(x[i]) & kMagnitude));
    return static_cast<uint32_t>(largest);
}

// The scale of a bucket of x * share; NaN if anything in it is not finite.
inline float bucket_scale(const float *x, size_t count, size_t width, bool l2, float share) {
    if (!l2) {
        const uint32_t largest = largest_magnitude(x, count);
        return to_float(largest >= kInfinity ? kNan : largest) * share;
    }
    const double sum = tree_sum(Square{share}, x, count, width);
    return std::isfinite(sum) ? capped(std::sqrt(sum)) : to_float(kNan);
}

void clip(const float *x, size_t n, size_t bucket, double factor, float *out) {
    const size_t width = std::min(bucket, n);
    for (size_t at = 0; at < n; at += width) {
        const size_t count = std::min(width, n - at);
        const double sum = tree_sum(Square{}, x + at, count, width);
        const float limit = std::isfinite(sum) ? capped(std::sqrt(sum / static_cast<double>(count)) * factor)
                                               : to_float(kInfinity);
        for (size_t i = at; i < at + count; i++) {
            const float v = x[i];
            out[i] = v > limit ? limit : (v < -limit ? -limit : v);
        }
    }
}
