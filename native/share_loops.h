// A rank's share of a mean, and whether numbers are finite.

struct Divided {
    static float of(float x, float ranks) { return x / ranks; }
};
struct Multiplied {  // by the inverse of a power of two: the same bits, sooner
    static float of(float x, float inverse) { return x * inverse; }
};

// out = x / ranks (+ residual); returns the largest magnitude (bit pattern) of the quotients.
template <class Share, bool Add>
uint32_t share_run(const float *__restrict x, size_t n, float by, const float *__restrict residual,
                   float *__restrict out) {
    int32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        const float share = Share::of(x[i], by);
        largest = std::max(largest, static_cast<int32_t>(to_bits(share) & kMagnitude));
        out[i] = Add ? share + residual[i] : share;
    }
    return static_cast<uint32_t>(largest);
}

template <class Share>
uint32_t share_by(const float *x, size_t n, float by, const float *residual, float *out) {
    return residual ? share_run<Share, true>(x, n, by, residual, out) : share_run<Share, false>(x, n, by, nullptr, out);
}

bool share(const float *x, size_t n, uint32_t ranks, const float *residual, float *out) {
    const float by = static_cast<float>(ranks);
    const bool power = (ranks & (ranks - 1)) == 0;
    const uint32_t largest = power ? share_by<Multiplied>(x, n, 1.0f / by, residual, out)
                                   : share_by<Divided>(x, n, by, residual, out);
    return largest < kInfinity;
}

// The bit pattern of the largest magnitude, NaN being above infinity; stops at a block that is not finite.
uint32_t magnitude(const float *x, size_t n) {
    constexpr size_t kStretch = 8192;
    uint32_t largest = 0;
    for (size_t at = 0; at < n && largest < kInfinity; at += kStretch)
        largest = std::max(largest, largest_magnitude(x + at, std::min(kStretch, n - at)));
    return largest;
}
