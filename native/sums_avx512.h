// Sums of runs by AVX-512.

// Eight numbers, of which `share` is a power of two.
inline __m256 eight_shares(const float *x, float share) {
    return _mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(share));
}

// Folds 64 sums in the order of `fold`.
inline double fold_columns(const __m512d *v) {
    const __m512d sum = _mm512_add_pd(_mm512_add_pd(_mm512_add_pd(v[0], v[4]), _mm512_add_pd(v[2], v[6])),
                                      _mm512_add_pd(_mm512_add_pd(v[1], v[5]), _mm512_add_pd(v[3], v[7])));
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(sum), _mm512_extractf64x4_pd(sum, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

// The square of a float is exact in float64, so that it may be fused with a sum.
inline __m512d squares_of_two(const float *x, const float *y, float share) {
    const __m512d a = _mm512_cvtps_pd(eight_shares(x, share)), b = _mm512_cvtps_pd(eight_shares(y, share));
    return _mm512_fmadd_pd(a, a, _mm512_mul_pd(b, b));
}

inline double sum_full_run(const Square f, const float *x) {
    __m512d v[8];
    const float *later = x + kLater;
#pragma GCC unroll 1
    for (size_t i = 0; i < 8; i++, x += 8) {  // the first three folds at once
        fetch_eighth(later + i * kRun / 8);
        v[i] = _mm512_add_pd(
            _mm512_add_pd(squares_of_two(x, x + 256, f.share), squares_of_two(x + 128, x + 384, f.share)),
            _mm512_add_pd(squares_of_two(x + 64, x + 320, f.share), squares_of_two(x + 192, x + 448, f.share)));
    }
    return fold_columns(v);
}

// Two times eight numbers, added up by sign; adds the numbers of those that are not below zero.
inline void halves_of_two(const float *x, const float *y, float share, __m512d &below, __m512d &above, int &count) {
    const __m256 first = eight_shares(x, share), second = eight_shares(y, share), zero = _mm256_setzero_ps();
    const __mmask8 up = _mm256_cmp_ps_mask(first, zero, _CMP_GE_OQ), up2 = _mm256_cmp_ps_mask(second, zero, _CMP_GE_OQ);
    const __m512d a = _mm512_cvtps_pd(first), b = _mm512_cvtps_pd(second);
    below = _mm512_maskz_mov_pd(static_cast<__mmask8>(~up), a);
    below = _mm512_mask_add_pd(below, static_cast<__mmask8>(~up2), below, b);
    above = _mm512_maskz_mov_pd(up, a);
    above = _mm512_mask_add_pd(above, up2, above, b);
    count += __builtin_popcount(up | up2 << 8);
}

inline Halves halves_of_run(const float *x, float share) {
    __m512d below[8], above[8];
    int count = 0;
#pragma GCC unroll 1
    for (size_t i = 0; i < 8; i++, x += 8) {
        __m512d b[4], a[4];
        const size_t places[] = {0, 128, 64, 192};
#pragma GCC unroll 4
        for (size_t k = 0; k < 4; k++) halves_of_two(x + places[k], x + places[k] + 256, share, b[k], a[k], count);
        below[i] = _mm512_add_pd(_mm512_add_pd(b[0], b[1]), _mm512_add_pd(b[2], b[3]));
        above[i] = _mm512_add_pd(_mm512_add_pd(a[0], a[1]), _mm512_add_pd(a[2], a[3]));
    }
    return {fold_columns(below) + 0.0, fold_columns(above) + 0.0, static_cast<double>(count)};
}
