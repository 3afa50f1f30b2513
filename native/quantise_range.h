// Range floats: codes are keys (upper bits of the pattern) counted from the smallest magnitude of the grid.

// How a magnitude (bit pattern) becomes an index: 0 for zero, 1 for the smallest magnitude, and so on.
struct RangeIndex {
    int shift;
    int32_t first;     // base - 1
    int32_t smallest;  // bit pattern of eps
    int32_t half;      // of eps / 2
    float per_eps;     // 1 / eps

    explicit RangeIndex(const Range &how) : shift(23 - how.mantissa), first(how.base - 1) {
        smallest = how.base << shift;
        half = smallest >= 1 << 24 ? smallest - (1 << 23) : smallest >> 1;
        per_eps = 1.0f / to_float(static_cast<uint32_t>(smallest));
    }

    int32_t nearest(uint32_t bits) const {
        const int32_t magnitude = static_cast<int32_t>(bits);
        const int32_t key = static_cast<int32_t>((bits + (1u << (shift - 1))) >> shift) - first;
        return select(mask_of(magnitude >= smallest), key, -mask_of(magnitude >= half));
    }

    int32_t stochastic(uint32_t bits, uint32_t drawn) const {
        const int32_t key = static_cast<int32_t>((bits + (drawn & ((1u << shift) - 1))) >> shift) - first;
        const int32_t lowest = -mask_of(uniform24(drawn) < to_float(bits) * per_eps);
        return select(mask_of(static_cast<int32_t>(bits) >= smallest), key, lowest);
    }

    int32_t end(int32_t codes) const { return codes > 0 ? (first + codes) << shift : 0; }
};

// Codes of n elements; counts those beyond the end points.
template <bool Stochastic>
int32_t range_run(const Range &how, const float *__restrict x, size_t n, Draw draw, Codes &to) {
    const RangeIndex grid(how);
    const int32_t positives = how.positives, negatives = how.negatives;
    const int32_t end_p = grid.end(positives), end_n = grid.end(negatives);
    int32_t *__restrict codes = to.of;
    int32_t saturated = 0;
    for (uint32_t i = 0; i < static_cast<uint32_t>(n); i++) {
        const uint32_t bits = to_bits(x[i]), magnitude = bits & kMagnitude;
        const int32_t negative = static_cast<int32_t>(bits) >> 31;
        int32_t index = Stochastic ? grid.stochastic(magnitude, hash32(draw, i)) : grid.nearest(magnitude);
        index = std::min(index, select(negative, negatives, positives));
        saturated -= mask_of(static_cast<int32_t>(magnitude) > select(negative, end_n, end_p));
        codes[i] = index + (positives & negative & mask_of(index > 0));
    }
    return saturated;
}

int64_t range_encode(const Range &how, const float *x, size_t n, Draw draw, Symbols to) {
    Block block;
    Codes codes;
    const auto run = how.stochastic ? range_run<true> : range_run<false>;
    int64_t saturated = 0;
    for (size_t at = 0; at < n; at += kBlock) {
        const size_t count = std::min(kBlock, n - at);
        saturated += run(how, x + at, count, {draw.low + static_cast<uint32_t>(at), draw.high}, codes);
        narrow(codes, count, 0, block.low);
        if (how.bits > 8) narrow(codes, count, 8, block.high);
        put_block(block, at, count, how.bits, to);
    }
    return saturated;
}

template <bool Wide, bool Add>
void range_values(const Range &how, const Block &block, size_t n, float *__restrict out) {
    const uint8_t *__restrict low = block.low;
    const uint8_t *__restrict high = block.high;
    const int32_t positives = how.positives, last = how.positives + how.negatives;
    const int32_t first = how.base - 1;
    const int shift = 23 - how.mantissa;
    for (size_t i = 0; i < n; i++) {
        const int32_t code = std::min(Wide ? low[i] | high[i] << 8 : static_cast<int32_t>(low[i]), last);
        const int32_t index = code > positives ? code - positives : code;
        const uint32_t magnitude = static_cast<uint32_t>(index + first) << shift;
        const float value = to_float((index > 0 ? magnitude : 0u) | (code > positives ? kSign : 0u));
        out[i] = Add ? out[i] + value : value;
    }
}

void range_decode(const Range &how, Symbols from, float *out, size_t n, bool add) {
    Block block;
    const bool wide = how.bits > 8;
    const auto run = add ? (wide ? range_values<true, true> : range_values<false, true>)
                         : (wide ? range_values<true, false> : range_values<false, false>);
    for (size_t at = 0; at < n; at += kBlock) {
        const size_t count = std::min(kBlock, n - at);
        get_block(block, at, count, how.bits, from);
        run(how, block, count, out + at);
    }
}
