// Real FFTs as orthonormal spectra, one row after the other, each of which stays in the nearest cache. N numbers are
// taken for M = N/2 complex ones, whose transform Z has all that is needed: with E = Z_k + conj Z_{M-k},
// O = (Z_k - conj Z_{M-k}) / i and w = e^(-2 pi i k / N), X_k = (E + w O) / 2 and X_{M-k} = conj(E - w O) / 2.

// One pair to be written, with what is owed.
inline void put_pair(float re, float im, size_t k, const float *owed, float *out) {
    out[2 * k] = owed ? re + owed[2 * k] : re;
    out[2 * k + 1] = owed ? im + owed[2 * k + 1] : im;
}

template <size_t W>
THINWIRE_INLINE void put_pairs(typename Wide<W>::Of re, typename Wide<W>::Of im, size_t k, const float *owed,
                               float *out) {
    zip<W>(re, im, All<W>());
    if (owed) {
        re += load_wide<W>(owed + 2 * k);
        im += load_wide<W>(owed + 2 * k + W);
    }
    store_wide(re, out + 2 * k);
    store_wide(im, out + 2 * k + W);
}

// Pairs k and M - k from `low` to `high`, W at a time; roots are w for k < M/2, real parts first.
template <size_t W>
void unfold(Apart z, size_t size, const float *roots, size_t low, size_t high, float half, const float *owed,
            float *out) {
    using V = typename Wide<W>::Of;
    for (size_t k = low; k < high; k += W) {
        const size_t mirrored = size - k - (W - 1);
        const V a = load_wide<W>(z.re + k), b = load_wide<W>(z.im + k);
        const V c = backwards<W>(load_wide<W>(z.re + mirrored), All<W>());
        const V d = backwards<W>(load_wide<W>(z.im + mirrored), All<W>());
        const V w_re = load_wide<W>(roots + k), w_im = load_wide<W>(roots + size / 2 + k);
        const V e_re = a + c, e_im = b - d, o_re = b + d, o_im = c - a;
        const V t_re = w_re * o_re - w_im * o_im, t_im = w_re * o_im + w_im * o_re;
        put_pairs<W>((e_re + t_re) * half, (e_im + t_im) * half, k, owed, out);
        put_pairs<W>(backwards<W>((e_re - t_re) * half, All<W>()), backwards<W>((t_im - e_im) * half, All<W>()),
                     mirrored, owed, out);
    }
}

// The way back, with O = conj(w) (X_k - conj X_{M-k}) and Z_k = E + i O.
template <size_t W>
void fold(Pairs pairs, size_t size, const float *roots, size_t low, size_t high, float half, Apart z) {
    using V = typename Wide<W>::Of;
    for (size_t k = low; k < high; k += W) {
        const size_t mirrored = size - k - (W - 1);
        V a, b, c, d;
        take<W>(pairs, k, a, b);
        take<W>(pairs, mirrored, c, d);
        c = backwards<W>(c, All<W>());
        d = backwards<W>(d, All<W>());
        const V w_re = load_wide<W>(roots + k), w_im = load_wide<W>(roots + size / 2 + k);
        const V e_re = a + c, e_im = b - d, g_re = a - c, g_im = b + d;
        const V o_re = w_re * g_re + w_im * g_im, o_im = w_re * g_im - w_im * g_re;
        store_wide(V((e_re - o_im) * half), z.re + k);
        store_wide(V((e_im + o_re) * half), z.im + k);
        store_wide(backwards<W>((e_re + o_im) * half, All<W>()), z.re + mirrored);
        store_wide(backwards<W>((o_re - e_im) * half, All<W>()), z.im + mirrored);
    }
}

inline Apart halves(float *row, size_t size) { return {row, row + size}; }

template <size_t W>
void pairs_of_row(const Fourier &by, const float *row, const float *owed, float *work, float *out) {
    constexpr size_t few = std::min<size_t>(W, 4);
    const size_t size = by.length / 2;
    const Apart first = halves(work, size), second = halves(work + by.length, size);
    const Unfinished passed = transform<W>(Pairs{row}, size, by.roots, first, second);
    const Apart z = passed.other;
    finish<W>(passed, z);
    put_pair((z.re[0] + z.im[0]) * by.real, (z.re[0] - z.im[0]) * by.real, 0, owed, out);
    if (size == 1) return;
    put_pair(z.re[size / 2] * by.pair, -(z.im[size / 2] * by.pair), size / 2, owed, out);
    unfold<1>(z, size, by.unfolding, 1, std::min(few, size / 2), by.half, owed, out);
    unfold<few>(z, size, by.unfolding, few, W, by.half, owed, out);
    unfold<W>(z, size, by.unfolding, W, size / 2, by.half, owed, out);
}

// The inverse transform is the transform with real and imaginary parts exchanged, before and after.
template <size_t W>
void row_of_pairs(const Fourier &by, const float *pairs, float *work, float *out) {
    constexpr size_t few = std::min<size_t>(W, 4);
    const size_t size = by.length / 2;
    const Apart exchanged = halves(work, size), z = {exchanged.im, exchanged.re};
    z.re[0] = (pairs[0] + pairs[1]) * by.real;
    z.im[0] = (pairs[0] - pairs[1]) * by.real;
    if (size > 1) {
        z.re[size / 2] = pairs[size] * by.pair;
        z.im[size / 2] = -(pairs[size + 1] * by.pair);
        fold<1>({pairs}, size, by.unfolding, 1, std::min(few, size / 2), by.half, z);
        fold<few>({pairs}, size, by.unfolding, few, W, by.half, z);
        fold<W>({pairs}, size, by.unfolding, W, size / 2, by.half, z);
    }
    const Apart other = halves(work + by.length, size);
    finish<W>(transform<W>(exchanged, size, by.roots, other, exchanged), Exchanged{out});
}

// A row is divided where it will be read at once, in work memory.
template <size_t W>
void all_pairs(const Fourier &by, const float *rows, size_t count, const float *owed, float *work, float *out) {
    float *const divided = work + 2 * by.length;
    for (size_t at = 0; at < count * by.length; at += by.length) {
        if (by.ranks > 1) share(rows + at, by.length, by.ranks, nullptr, divided);
        pairs_of_row<W>(by, by.ranks > 1 ? divided : rows + at, owed ? owed + at : nullptr, work, out + at);
    }
}

template <size_t W>
void all_rows(const Fourier &by, const float *pairs, size_t count, float *work, float *out) {
    for (size_t at = 0; at < count * by.length; at += by.length) row_of_pairs<W>(by, pairs + at, work, out + at);
}

// Registers as wide as a row has neighbours on either side of the transposition: [4][M/4], [16][M/16] for wide ones.
constexpr size_t kNarrower = std::max<size_t>(kWidest / 2, 4);

void pairs_of_rows(const Fourier &by, const float *rows, size_t count, const float *owed, float *work, float *out) {
    if (by.length >= 32 * kWidest) return all_pairs<kWidest>(by, rows, count, owed, work, out);
    if (by.length >= 32 * kNarrower) return all_pairs<kNarrower>(by, rows, count, owed, work, out);
    if (by.length >= 32) return all_pairs<4>(by, rows, count, owed, work, out);
    all_pairs<1>(by, rows, count, owed, work, out);
}

void rows_of_pairs(const Fourier &by, const float *pairs, size_t count, float *work, float *out) {
    if (by.length >= 32 * kWidest) return all_rows<kWidest>(by, pairs, count, work, out);
    if (by.length >= 32 * kNarrower) return all_rows<kNarrower>(by, pairs, count, work, out);
    if (by.length >= 32) return all_rows<4>(by, pairs, count, work, out);
    all_rows<1>(by, pairs, count, work, out);
}
