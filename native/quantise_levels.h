// How a scaled magnitude becomes a level, by a random draw, and a level a magnitude.

struct UniformLevels {
    int32_t top;
    float step;
    explicit UniformLevels(const Scaled &how)
        : top((1 << (how.bits - 1)) - 1), step(static_cast<float>(1.0 / static_cast<double>(top))) {}
    float numerator() const { return static_cast<float>(top); }
    int32_t level(float a, uint32_t drawn) const { return std::min(static_cast<int32_t>(a + uniform24(drawn)), top); }
    float of(uint32_t level) const { return static_cast<float>(static_cast<int32_t>(level)) * step; }
};

struct PowersOfTwo {
    int32_t top;
    int32_t smallest;  // bit pattern of 2^(1 - top)
    float stretch;     // its inverse
    float unit;        // 2^-24 of it; 0 where there is no such float
    explicit PowersOfTwo(const Scaled &how)
        : top((1 << (how.bits - 1)) - 1), smallest((128 - top) << 23),
          stretch(to_float(static_cast<uint32_t>(126 + top) << 23)),
          unit(to_float(static_cast<uint32_t>(std::max(104 - top, 0)) << 23)) {}
    float numerator() const { return 1.0f; }
    int32_t level(float r, uint32_t drawn) const {
        const int32_t bits = static_cast<int32_t>(to_bits(r));
        const int32_t carried = ((bits + static_cast<int32_t>(drawn & 0x7fffff)) >> 23) - (127 - top);
        const int32_t lowest = -mask_of(uniform24(drawn) < r * stretch);
        return std::min(select(mask_of(bits >= smallest), carried, lowest), top);
    }
    float of(uint32_t level) const {
        const int32_t bits = (static_cast<int32_t>(level) + (127 - top)) << 23;
        return to_float(static_cast<uint32_t>(level > 0 ? bits : 0));
    }
};

template <int Bits>
struct TableLevels {
    static constexpr int kSize = 1 << (Bits - 1);
    float table[kSize];  // filled up with the last level
    int32_t last;
    explicit TableLevels(const Scaled &how) : last(how.level_count - 1) {
        for (int i = 0; i < kSize; i++) table[i] = how.levels[std::min(i, last)];
    }
    float numerator() const { return 1.0f; }
    int32_t level(float r, uint32_t drawn) const {
        int32_t j = 0;
        uint32_t low = to_bits(table[0]), high = to_bits(table[1]);
        if (kSize <= 16) {  // compare with all: no lookup, so the loop over elements vectorises
            for (int k = 1; k < kSize - 1; k++) {
                const int32_t passed = mask_of(table[k] <= r) & mask_of(k < last);
                j -= passed;
                low = pick(passed, table[k], low);
                high = pick(passed, table[k + 1], high);
            }
        } else {
            for (int32_t step = kSize / 2; step >= 1; step /= 2) j += step & mask_of(table[j + step] <= r);
            j = std::min(j, last - 1);
            low = to_bits(table[j]), high = to_bits(table[j + 1]);
        }
        const float chance = (r - to_float(low)) / (to_float(high) - to_float(low));
        return j - mask_of(uniform24(drawn) < chance);
    }
    static uint32_t pick(int32_t mask, float yes, uint32_t no) {
        return no ^ ((to_bits(yes) ^ no) & static_cast<uint32_t>(mask));
    }
    float of(uint32_t level) const { return table[level]; }
};

// What vector instructions can do of the codes of x * share: the number of elements done from the start.
template <class M>
inline size_t code_wide(const M &, const float *, size_t, float, float, Draw, int, uint8_t *) {
    return 0;
}

#ifdef THINWIRE_AVX512
#include "levels_avx512.h"
#elif defined(THINWIRE_F16C)
// Levels of eight numbers. They may exceed the top level by one; `code_by_vectors` puts that right.
inline __m256i wide_levels(const UniformLevels &, __m256 a, __m256i drawn) {
    const __m256 uniform = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(drawn, 8)), _mm256_set1_ps(0x1p-24f));
    return _mm256_cvttps_epi32(_mm256_add_ps(a, uniform));
}

inline __m256i wide_levels(const PowersOfTwo &m, __m256 r, __m256i drawn) {
    const __m256i bits = _mm256_castps_si256(r), mantissa = _mm256_and_si256(drawn, _mm256_set1_epi32(0x7fffff));
    const __m256i carried =
        _mm256_sub_epi32(_mm256_srli_epi32(_mm256_add_epi32(bits, mantissa), 23), _mm256_set1_epi32(127 - m.top));
    const __m256 uniform = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(drawn, 8)), _mm256_set1_ps(0x1p-24f));
    const __m256 less = _mm256_cmp_ps(uniform, _mm256_mul_ps(r, _mm256_set1_ps(m.stretch)), _CMP_LT_OQ);
    const __m256i lowest = _mm256_srli_epi32(_mm256_castps_si256(less), 31);
    return _mm256_blendv_epi8(lowest, carried, _mm256_cmpgt_epi32(bits, _mm256_set1_epi32(m.smallest - 1)));
}

inline __m256i hash_eight(__m256i x, uint32_t high) {
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
    x = _mm256_mullo_epi32(x, _mm256_set1_epi32(0x7feb352d));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
    x = _mm256_xor_si256(x, _mm256_set1_epi32(static_cast<int32_t>(high)));
    x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int32_t>(0x846ca68bu)));
    return _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
}

// Levels of 32 numbers are signed and narrowed together: both saturate where they must, and a sign goes with its zero.
template <class M>
inline size_t code_by_vectors(const M m, const float *x, size_t n, float share, float factor, Draw draw, int bits,
                              uint8_t *codes) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i sign = _mm256_set1_epi8(static_cast<char>(1 << (bits - 1)));
    const __m256i top = _mm256_set1_epi8(static_cast<char>((1 << (bits - 1)) - 1));
    __m256i position = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int32_t>(draw.low)),
                                        _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i levels[4];
        for (int k = 0; k < 4; k++) {
            const __m256 value = _mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * k), _mm256_set1_ps(share));
            const __m256 magnitude = _mm256_and_ps(value, _mm256_castsi256_ps(_mm256_set1_epi32(kMagnitude)));
            const __m256i drawn = hash_eight(position, draw.high);
            const __m256i level = wide_levels(m, _mm256_mul_ps(magnitude, _mm256_set1_ps(factor)), drawn);
            levels[k] = _mm256_sign_epi32(level, _mm256_castps_si256(value));
            position = _mm256_add_epi32(position, _mm256_set1_epi32(8));
        }
        const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(levels[0], levels[1]),
                                                 _mm256_packs_epi32(levels[2], levels[3]));
        const __m256i bytes = _mm256_permutevar8x32_epi32(mixed, order);
        const __m256i code = _mm256_min_epu8(_mm256_abs_epi8(bytes), top);
        const __m256i signs = _mm256_and_si256(_mm256_cmpgt_epi8(_mm256_setzero_si256(), bytes), sign);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(codes + i), _mm256_or_si256(code, signs));
    }
    return i;
}

#endif

#ifdef THINWIRE_F16C
inline size_t code_wide(const UniformLevels &m, const float *x, size_t n, float share, float factor, Draw draw,
                        int bits, uint8_t *codes) {
    return code_by_vectors(m, x, n, share, factor, draw, bits, codes);
}

inline size_t code_wide(const PowersOfTwo &m, const float *x, size_t n, float share, float factor, Draw draw, int bits,
                        uint8_t *codes) {
    return code_by_vectors(m, x, n, share, factor, draw, bits, codes);
}
#endif
