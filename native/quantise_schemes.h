// The four schemes with scales a bucket. Each is a struct with
//   open(x, count, width, scales)   the scales of the bucket that starts here, stored, and what `run` needs of them
//   run(x, n, position, codes)      codes of n elements of the open bucket, n up to 512, each a byte
//   load(scales)                    the scales of a bucket, for
//   value(code)                     what a code stands for

inline void store_scale(uint8_t *to, float scale) { std::memcpy(to, &scale, 4); }

inline float load_scale(const uint8_t *from) {
    float scale;
    std::memcpy(&scale, from, 4);
    return scale;
}

// |x| is multiplied by `lift` and then by `factor`; a power of two keeps both in range when the scale is extreme.
struct Opened {
    bool codes = false;  // false: scale 0 or NaN, all codes are 0
    float lift = 1.0f;
    float factor = 0.0f;

    void open(float scale, float numerator) {
        codes = scale > 0.0f;
        lift = scale < 0x1p-100f ? 0x1p100f : scale >= 0x1p100f ? 0x1p-100f : 1.0f;
        factor = codes ? numerator / (scale * lift) : 0.0f;
    }
};

// A scheme of sign and magnitude: M says how a scaled magnitude becomes a level, and a level a magnitude.
template <class M>
struct SignMagnitude {
    static constexpr size_t scale_bytes = 4;
    const Scaled &how;
    Draw draw;
    M magnitude;
    Opened opened;
    float scale = 0.0f;
    int sign_shift;
    uint32_t level_mask;

    SignMagnitude(const Scaled &how_, Draw draw_)
        : how(how_), draw(draw_), magnitude(how_), sign_shift(how_.bits - 1), level_mask((1u << (how_.bits - 1)) - 1) {}

    void open(const float *x, size_t count, size_t width, uint8_t *scales) {
        scale = bucket_scale(x, count, width, how.l2, how.share);
        store_scale(scales, scale);
        opened.open(scale, magnitude.numerator());
    }

    void run(const float *x, size_t n, uint32_t position, uint8_t *codes) const {
        const Draw drawn = {draw.low + position, draw.high};
        if (!opened.codes) {
            std::memset(codes, 0, n);
        } else if (opened.lift == 1.0f) {
            const size_t done = code_wide(magnitude, x, n, how.share, opened.factor, drawn, how.bits, codes);
            const Draw rest = {drawn.low + static_cast<uint32_t>(done), drawn.high};
            if (done < n) code(x + done, n - done, how.share, rest, codes + done);
        } else {
            float lifted[kBlock];
            for (size_t i = 0; i < n; i++) lifted[i] = x[i] * how.share * opened.lift;
            code(lifted, n, 1.0f, drawn, codes);
        }
    }

    void code(const float *__restrict x, size_t n, float share, Draw drawn, uint8_t *__restrict codes) const {
        Codes wide;
        const float factor = opened.factor;
        const M m = magnitude;
        const int32_t sign_bit = 1 << sign_shift;
        for (uint32_t i = 0; i < static_cast<uint32_t>(n); i++) {
            const uint32_t bits = to_bits(x[i] * share);
            const int32_t level = m.level(to_float(bits & kMagnitude) * factor, hash32(drawn, i));
            const int32_t sign = (static_cast<int32_t>(bits) >> 31) & sign_bit;
            wide.of[i] = level | (sign & mask_of(level > 0));
        }
        narrow(wide, n, 0, codes);
    }

    void load(const uint8_t *scales) { scale = load_scale(scales) * how.sign; }

    float value(uint32_t code) const {
        const float v = scale * magnitude.of(code & level_mask);
        return to_float(to_bits(v) ^ ((code >> sign_shift) << 31));
    }
};

struct SignMeans {
    static constexpr size_t scale_bytes = 8;
    float share, sign;
    bool finite = false;
    float below = 0.0f, above = 0.0f;

    SignMeans(const Scaled &how, Draw) : share(how.share), sign(how.sign) {}

    void open(const float *x, size_t count, size_t width, uint8_t *scales) {
        const Halves sum = sum_halves(x, count, width, share);
        const double count_below = static_cast<double>(count) - sum.count_above;
        finite = std::isfinite(sum.below) && std::isfinite(sum.above);
        below = finite ? static_cast<float>(sum.below / std::max(count_below, 1.0)) : to_float(kNan);
        above = finite ? static_cast<float>(sum.above / std::max(sum.count_above, 1.0)) : to_float(kNan);
        store_scale(scales, below);
        store_scale(scales + 4, above);
    }

    void run(const float *__restrict x, size_t n, uint32_t, uint8_t *__restrict codes) const {
        if (!finite) {
            std::memset(codes, 0, n);
            return;
        }
        Codes wide;
        for (size_t i = 0; i < n; i++) wide.of[i] = -mask_of(x[i] * share >= 0.0f);
        narrow(wide, n, 0, codes);
    }

    void load(const uint8_t *scales) {
        below = load_scale(scales) * sign;
        above = load_scale(scales + 4) * sign;
    }

    float value(uint32_t code) const { return code & 1 ? above : below; }
};

constexpr size_t kNear = 4096, kFarthest = 32768;  // elements: a part of the first-level cache, and of the second

template <class S>
void encode_as(const Scaled &how, const float *x, size_t n, Draw draw, uint8_t *scales, const Symbols &to) {
    S scheme(how, draw);
    Block block;
    const size_t width = std::min(how.bucket, n);
    const size_t ahead = std::min(std::max(width, kBlock), kFarthest);
    const bool near = ahead <= kNear;
    size_t left = 0;  // elements of the open bucket still to come
    for (size_t at = 0; at < n; at += kBlock) {
        const size_t count = std::min(kBlock, n - at);
        if (n - at >= ahead + kBlock) near ? fetch_block<true>(x + at + ahead) : fetch_block<false>(x + at + ahead);
        for (size_t done = 0; done < count;) {
            if (left == 0) {
                left = std::min(width, n - at - done);
                scheme.open(x + at + done, left, width, scales);
                scales += S::scale_bytes;
            }
            const size_t run = std::min(left, count - done);
            scheme.run(x + at + done, run, static_cast<uint32_t>(at + done), block.low + done);
            done += run;
            left -= run;
        }
        put_block(block, at, count, how.bits, to);
    }
}

template <class S, bool Add>
inline void write_values(const S &scheme, const uint8_t *__restrict codes, size_t n, float *__restrict out) {
    const S s = scheme;
    for (size_t i = 0; i < n; i++) out[i] = Add ? out[i] + s.value(codes[i]) : s.value(codes[i]);
}

template <class S>
void decode_as(const Scaled &how, const uint8_t *scales, const Symbols &from, float *out, size_t n, bool add) {
    S scheme(how, Draw{0, 0});
    Block block;
    const size_t width = std::min(how.bucket, n);
    size_t left = 0;
    for (size_t at = 0; at < n; at += kBlock) {
        const size_t count = std::min(kBlock, n - at);
        get_block(block, at, count, how.bits, from);
        for (size_t done = 0; done < count;) {
            if (left == 0) {
                left = std::min(width, n - at - done);
                scheme.load(scales);
                scales += S::scale_bytes;
            }
            const size_t run = std::min(left, count - done);
            if (add)
                write_values<S, true>(scheme, block.low + done, run, out + at + done);
            else
                write_values<S, false>(scheme, block.low + done, run, out + at + done);
            done += run;
            left -= run;
        }
    }
}

template <int Bits>
using Table = SignMagnitude<TableLevels<Bits>>;

void encode_table(const Scaled &how, const float *x, size_t n, Draw draw, uint8_t *scales, const Symbols &to) {
    switch (how.bits) {
        case 2: return encode_as<Table<2>>(how, x, n, draw, scales, to);
        case 3: return encode_as<Table<3>>(how, x, n, draw, scales, to);
        case 4: return encode_as<Table<4>>(how, x, n, draw, scales, to);
        case 5: return encode_as<Table<5>>(how, x, n, draw, scales, to);
        case 6: return encode_as<Table<6>>(how, x, n, draw, scales, to);
        case 7: return encode_as<Table<7>>(how, x, n, draw, scales, to);
        default: return encode_as<Table<8>>(how, x, n, draw, scales, to);
    }
}

void encode(const Scaled &how, const float *x, size_t n, Draw draw, uint8_t *scales, Symbols to) {
    switch (how.scheme) {
        case Scheme::uniform: return encode_as<SignMagnitude<UniformLevels>>(how, x, n, draw, scales, to);
        case Scheme::exponential: return encode_as<SignMagnitude<PowersOfTwo>>(how, x, n, draw, scales, to);
        case Scheme::levels: return encode_table(how, x, n, draw, scales, to);
        case Scheme::sign: return encode_as<SignMeans>(how, x, n, draw, scales, to);
    }
}

void decode(const Scaled &how, const uint8_t *scales, Symbols from, float *out, size_t n, bool add) {
    switch (how.scheme) {
        case Scheme::uniform: return decode_as<SignMagnitude<UniformLevels>>(how, scales, from, out, n, add);
        case Scheme::exponential: return decode_as<SignMagnitude<PowersOfTwo>>(how, scales, from, out, n, add);
        case Scheme::levels: return decode_as<Table<8>>(how, scales, from, out, n, add);
        case Scheme::sign: return decode_as<SignMeans>(how, scales, from, out, n, add);
    }
}
