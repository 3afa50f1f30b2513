// Sums in float64 in the order of `tree_sum` in the reference: runs of 512 folded in half, sums of runs likewise.

constexpr size_t kRun = 512;

struct Square {
    static double of(float x) { return static_cast<double>(x) * static_cast<double>(x); }
};
struct Above {
    static double of(float x) { return to_float(to_bits(x) & static_cast<uint32_t>(mask_of(x >= 0.0f))); }
};
struct Below {  // NaN counts as below, so that a bucket which holds one is noticed
    static double of(float x) { return to_float(to_bits(x) & ~static_cast<uint32_t>(mask_of(x >= 0.0f))); }
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

template <class F>
inline double sum_full_run(const float *x) {
    double v[kRun / 8];
    for (size_t i = 0; i < kRun / 8; i++) {  // the first three folds at once
        const double a = (F::of(x[i]) + F::of(x[i + 256])) + (F::of(x[i + 128]) + F::of(x[i + 384]));
        const double b = (F::of(x[i + 64]) + F::of(x[i + 320])) + (F::of(x[i + 192]) + F::of(x[i + 448]));
        v[i] = a + b;
    }
    return fold(v, kRun / 8);
}

// Sum of `count` elements as one node of `width` children that span `span` elements each.
template <class F>
double sum_node(const float *x, size_t count, size_t span, size_t width) {
    if (span == 1 && count == kRun && width == kRun) return sum_full_run<F>(x);
    double v[kRun];
    size_t filled = 0;
    if (span == 1)
        for (; filled < count; filled++) v[filled] = F::of(x[filled]);
    else
        for (size_t at = 0; at < count; at += span) {
            if (span == kRun && count - at >= 4 * kRun) fetch_block(x + at + 3 * kRun);
            v[filled++] = sum_node<F>(x + at, std::min(span, count - at), span / kRun, kRun);
        }
    for (; filled < width; filled++) v[filled] = 0.0;
    return fold(v, width);
}

// `width` is the length of a whole bucket; the last one may hold fewer elements. The added zero turns -0 into 0.
template <class F>
inline double tree_sum(const float *x, size_t count, size_t width) {
    size_t span = 1;
    while (span * kRun < width) span *= kRun;
    return sum_node<F>(x, count, span, power_of_two_from((width + span - 1) / span)) + 0.0;
}

double sum_of_squares(const float *x, size_t n) { return tree_sum<Square>(x, n, n); }

inline float capped(double value) { return static_cast<float>(std::min(value, static_cast<double>(kLargest))); }

inline uint32_t largest_magnitude(const float *x, size_t n) {
    int32_t largest = 0;
    for (size_t i = 0; i < n; i++) largest = std::max(largest, static_cast<int32_t>(to_bits(x[i]) & kMagnitude));
    return static_cast<uint32_t>(largest);
}

// The scale of a bucket; NaN if anything in it is not finite.
inline float bucket_scale(const float *x, size_t count, size_t width, bool l2) {
    if (!l2) {
        const uint32_t largest = largest_magnitude(x, count);
        return to_float(largest >= kInfinity ? kNan : largest);
    }
    const double sum = tree_sum<Square>(x, count, width);
    return std::isfinite(sum) ? capped(std::sqrt(sum)) : to_float(kNan);
}

void clip(const float *x, size_t n, size_t bucket, double factor, float *out) {
    const size_t width = std::min(bucket, n);
    for (size_t at = 0; at < n; at += width) {
        const size_t count = std::min(width, n - at);
        const double sum = tree_sum<Square>(x + at, count, width);
        const float limit = std::isfinite(sum) ? capped(std::sqrt(sum / static_cast<double>(count)) * factor)
                                               : to_float(kInfinity);
        for (size_t i = at; i < at + count; i++) {
            const float v = x[i];
            out[i] = v > limit ? limit : (v < -limit ? -limit : v);
        }
    }
}
