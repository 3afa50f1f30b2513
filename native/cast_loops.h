// Shorter floats, to and from bytes at any address. Rounding is to the nearest, ties to even; a NaN stays one, with
// the upper bits of its payload.

using Word16 __attribute__((aligned(1), may_alias)) = uint16_t;

struct Half {
    static uint16_t from(float x) {
        const uint32_t bits = to_bits(x), size = bits & kMagnitude;
        const int32_t known = static_cast<int32_t>(size);  // signed comparisons vectorise
        const int32_t normal = std::min(static_cast<int32_t>((size - 0x38000000u + 0xfffu + ((size >> 13) & 1)) >> 13),
                                        0x7c00);
        const int32_t small = static_cast<int32_t>(to_bits(to_float(size) + 0.5f) - 0x3f000000u);  // steps of 2^-24
        const int32_t nan = static_cast<int32_t>(0x7e00u | ((size >> 13) & 0x3ffu));
        const int32_t finite = select(mask_of(known < 0x38800000), small, normal);
        return static_cast<uint16_t>(static_cast<uint32_t>(select(mask_of(known > 0x7f800000), nan, finite)) |
                                     ((bits >> 16) & 0x8000u));
    }
    static float to(uint16_t half) {
        const uint32_t size = half & 0x7fffu, sign = static_cast<uint32_t>(half & 0x8000u) << 16;
        const int32_t known = static_cast<int32_t>(size);
        const uint32_t small = to_bits(static_cast<float>(known) * 0x1p-24f);
        const uint32_t normal = (size << 13) + 0x38000000u;
        const uint32_t beyond = (size << 13) | kInfinity | (static_cast<uint32_t>(mask_of(known > 0x7c00)) & 0x400000u);
        const int32_t finite =
            select(mask_of(known < 0x400), static_cast<int32_t>(small), static_cast<int32_t>(normal));
        return to_float(static_cast<uint32_t>(select(mask_of(known >= 0x7c00), static_cast<int32_t>(beyond), finite)) |
                        sign);
    }
};

struct Brain {
    static uint16_t from(float x) {
        const uint32_t bits = to_bits(x), rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
        const int32_t nan = mask_of(static_cast<int32_t>(bits & kMagnitude) > 0x7f800000);
        return static_cast<uint16_t>(
            select(nan, static_cast<int32_t>((bits >> 16) | 0x40u), static_cast<int32_t>(rounded)));
    }
    static float to(uint16_t brain) { return to_float(static_cast<uint32_t>(brain) << 16); }
};

// What vector instructions can do of it: the number of elements done from the start.
template <class Short>
inline size_t shorten_wide(const float *, size_t, Word16 *) {
    return 0;
}

template <class Short, bool Add>
inline size_t lengthen_wide(const Word16 *, size_t, float *) {
    return 0;
}

#ifdef THINWIRE_F16C
template <>
inline size_t shorten_wide<Half>(const float *x, size_t n, Word16 *out) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i *>(out + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    return i;
}

inline __m256i rounded_to_brain(const float *x) {
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(x), _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}

template <>
inline size_t shorten_wide<Brain>(const float *x, size_t n, Word16 *out) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {  // packing works within halves of 128 bits, so the middle quarters change places
        const __m256i packed = _mm256_packus_epi32(rounded_to_brain(x + i), rounded_to_brain(x + i + 8));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + i), _mm256_permute4x64_epi64(packed, 0xd8));
    }
    return i;
}

template <bool Add>
inline size_t lengthen_halves(const Word16 *in, size_t n, float *out) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 value = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(in + i)));
        _mm256_storeu_ps(out + i, Add ? _mm256_add_ps(_mm256_loadu_ps(out + i), value) : value);
    }
    return i;
}

template <>
inline size_t lengthen_wide<Half, true>(const Word16 *in, size_t n, float *out) {
    return lengthen_halves<true>(in, n, out);
}

template <>
inline size_t lengthen_wide<Half, false>(const Word16 *in, size_t n, float *out) {
    return lengthen_halves<false>(in, n, out);
}
#endif

template <class Short>
void shorten_as(const float *__restrict x, size_t n, Word16 *__restrict out) {
    for (size_t i = shorten_wide<Short>(x, n, out); i < n; i++) out[i] = Short::from(x[i]);
}

template <class Short, bool Add>
void lengthen_as(const Word16 *__restrict in, size_t n, float *__restrict out) {
    for (size_t i = lengthen_wide<Short, Add>(in, n, out); i < n; i++)
        out[i] = Add ? out[i] + Short::to(in[i]) : Short::to(in[i]);
}

void shorten(bool brain, const float *x, size_t n, uint8_t *out) {
    Word16 *to = reinterpret_cast<Word16 *>(out);
    brain ? shorten_as<Brain>(x, n, to) : shorten_as<Half>(x, n, to);
}

void lengthen(bool brain, const uint8_t *in, size_t n, float *out, bool add) {
    const Word16 *from = reinterpret_cast<const Word16 *>(in);
    if (brain)
        add ? lengthen_as<Brain, true>(from, n, out) : lengthen_as<Brain, false>(from, n, out);
    else
        add ? lengthen_as<Half, true>(from, n, out) : lengthen_as<Half, false>(from, n, out);
}
