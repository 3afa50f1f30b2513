// Shared-scale integers: signed digits of int32 lanes. Digit f of lane j is number f * lanes + j, so blocks of lanes
// read one run of numbers for each digit.

// floor((x / ranks * lift) * factor + u), u uniform in [0, 1), within +-levels, shifted into its digit and added to the
// lanes.
// Limiting before rounding down gives the same whole number, and keeps the conversion in range.
template <class Share>
inline void add_digit(const Lanes &how, const float *__restrict x, size_t n, Draw draw, int shift, float by,
                      int32_t *__restrict lanes) {
    const float lift = how.lift, factor = how.factor, top = static_cast<float>(how.levels);
    for (uint32_t i = 0; i < static_cast<uint32_t>(n); i++) {
        float t = (Share::of(x[i], by) * lift) * factor + uniform24(hash32(draw, i));
        t = t > top ? top : t;
        t = t < -top ? -top : t;
        const int32_t whole = static_cast<int32_t>(t);
        const int32_t below = whole + mask_of(static_cast<float>(whole) > t);
        lanes[i] = static_cast<int32_t>(static_cast<uint32_t>(lanes[i]) + (static_cast<uint32_t>(below) << shift));
    }
}

// The digit is what remains of the lane after the lower digits, read as a signed number of `bits` bits.
template <bool Add>
inline void take_digit(const Lanes &how, size_t n, float *__restrict out, int32_t *__restrict lanes) {
    const float unit = how.factor, scale = how.lift;
    const int spare = 32 - how.bits, bits = how.bits;
    for (size_t i = 0; i < n; i++) {
        const int32_t digit = static_cast<int32_t>(static_cast<uint32_t>(lanes[i]) << spare) >> spare;
        const float value = (static_cast<float>(digit) * unit) * scale;
        out[i] = Add ? out[i] + value : value;
        lanes[i] = static_cast<int32_t>(static_cast<uint32_t>(lanes[i]) - static_cast<uint32_t>(digit)) >> bits;
    }
}

// Lanes from `begin` to `end` of those that hold x[0..n).
void lanes_encode(const Lanes &how, const float *x, size_t n, Draw draw, size_t begin, size_t end, int32_t *lanes) {
    alignas(64) int32_t block[kBlock];
    const bool power = (how.ranks & (how.ranks - 1)) == 0;
    const float by = static_cast<float>(how.ranks);
    for (size_t at = begin; at < end; at += kBlock) {
        const size_t width = std::min(kBlock, end - at);
        std::memset(block, 0, sizeof(block));
        size_t low = at;
        for (int shift = 0; shift + how.bits <= 32 && low < n; shift += how.bits, low += how.count) {
            const Draw drawn = {draw.low + static_cast<uint32_t>(low), draw.high};
            if (power)
                add_digit<Multiplied>(how, x + low, std::min(width, n - low), drawn, shift, 1.0f / by, block);
            else
                add_digit<Divided>(how, x + low, std::min(width, n - low), drawn, shift, by, block);
        }
        std::memcpy(lanes + at, block, width * sizeof(int32_t));
    }
}

void lanes_decode(const Lanes &how, const int32_t *lanes, size_t n, size_t begin, size_t end, float *out, bool add) {
    alignas(64) int32_t block[kBlock];
    for (size_t at = begin; at < end; at += kBlock) {
        const size_t width = std::min(kBlock, end - at);
        std::memcpy(block, lanes + at, width * sizeof(int32_t));
        size_t low = at;
        for (int shift = 0; shift + how.bits <= 32 && low < n; shift += how.bits, low += how.count) {
            const size_t some = std::min(width, n - low);
            add ? take_digit<true>(how, some, out + low, block) : take_digit<false>(how, some, out + low, block);
        }
    }
}
