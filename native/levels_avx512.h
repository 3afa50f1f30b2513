// Codes by AVX-512, sixteen numbers at a time.

// Levels may exceed the top level by one; `code_by_vectors` puts that right. A product with a power of two is exact, so
// that it may be fused with a sum.
inline __m512i wide_levels(const UniformLevels &, __m512 a, __m512i drawn) {
    const __m512 whole = _mm512_cvtepi32_ps(_mm512_srli_epi32(drawn, 8));
    return _mm512_cvttps_epi32(_mm512_fmadd_ps(whole, _mm512_set1_ps(0x1p-24f), a));
}

inline __m512i wide_levels(const PowersOfTwo &m, __m512 r, __m512i drawn) {
    const __m512i bits = _mm512_castps_si512(r), mantissa = _mm512_and_si512(drawn, _mm512_set1_epi32(0x7fffff));
    const __m512i carried = _mm512_srli_epi32(_mm512_add_epi32(bits, mantissa), 23);
    const __m512 whole = _mm512_cvtepi32_ps(_mm512_srli_epi32(drawn, 8));
    const __mmask16 less =  // both sides multiplied by the same power of two, if there is such a float
        m.unit > 0.0f ? _mm512_cmp_ps_mask(_mm512_mul_ps(whole, _mm512_set1_ps(m.unit)), r, _CMP_LT_OQ)
                      : _mm512_cmp_ps_mask(_mm512_mul_ps(whole, _mm512_set1_ps(0x1p-24f)),
                                           _mm512_mul_ps(r, _mm512_set1_ps(m.stretch)), _CMP_LT_OQ);
    const __mmask16 large = _mm512_cmpge_epi32_mask(bits, _mm512_set1_epi32(m.smallest));
    return _mm512_mask_sub_epi32(_mm512_maskz_set1_epi32(less, 1), large, carried, _mm512_set1_epi32(127 - m.top));
}

inline __m512i hash_sixteen(__m512i x, uint32_t high) {
    constexpr int kXorAll = 0x96;
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32(0x7feb352d));
    x = _mm512_ternarylogic_epi32(x, _mm512_srli_epi32(x, 15), _mm512_set1_epi32(static_cast<int32_t>(high)), kXorAll);
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int32_t>(0x846ca68bu)));
    return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}

template <class M>
inline size_t code_by_vectors(const M m, const float *x, size_t n, float share, float factor, Draw draw, int bits,
                              uint8_t *codes) {
    const __m512i top = _mm512_set1_epi32((1 << (bits - 1)) - 1), sign = _mm512_set1_epi32(1 << (bits - 1));
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i position = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int32_t>(draw.low)), first);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512 value = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(share));
        const __m512 scaled = _mm512_mul_ps(_mm512_abs_ps(value), _mm512_set1_ps(factor));
        const __m512i level = _mm512_min_epi32(wide_levels(m, scaled, hash_sixteen(position, draw.high)), top);
        const __mmask16 negative = _mm512_movepi32_mask(_mm512_castps_si512(value));
        const __mmask16 signs = _mm512_mask_test_epi32_mask(negative, level, level);
        const __m512i code = _mm512_mask_or_epi32(level, signs, level, sign);
        _mm_storeu_si128(reinterpret_cast<__m128i *>(codes + i), _mm512_maskz_cvtepi32_epi8(0xffff, code));
        position = _mm512_add_epi32(position, _mm512_set1_epi32(16));
    }
    return i;
}
