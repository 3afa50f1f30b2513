// The FFT of complex numbers, a power of two of them: Stockham's passes of radix 4, which leave the results in order.
// A pass finds s transforms of n numbers each and makes 4 s of n/4 numbers: of [n][s] numbers [n/4][4 s].
//
// A register holds W neighbours. At first there are none along s, so numbers lie as [s][n] until s >= W, and are then
// transposed once: that changes where they lie, not what is computed.

// Complex numbers in memory: their parts apart, pairs (real, imaginary), and pairs (imaginary, real).
struct Apart {
    float *re, *im;
};

struct Pairs {
    const float *numbers;
};

struct Exchanged {
    float *numbers;
};

template <size_t W>
THINWIRE_INLINE void take(Apart from, size_t at, typename Wide<W>::Of &re, typename Wide<W>::Of &im) {
    re = load_wide<W>(from.re + at);
    im = load_wide<W>(from.im + at);
}

template <size_t W>
THINWIRE_INLINE void take(Pairs from, size_t at, typename Wide<W>::Of &re, typename Wide<W>::Of &im) {
    re = load_wide<W>(from.numbers + 2 * at);
    im = load_wide<W>(from.numbers + 2 * at + W);
    part<W>(re, im, All<W>());
}

template <size_t W>
THINWIRE_INLINE void put(typename Wide<W>::Of re, typename Wide<W>::Of im, Apart to, size_t at) {
    store_wide(re, to.re + at);
    store_wide(im, to.im + at);
}

template <size_t W>
THINWIRE_INLINE void put(typename Wide<W>::Of re, typename Wide<W>::Of im, Exchanged to, size_t at) {
    zip<W>(im, re, All<W>());
    store_wide(im, to.numbers + 2 * at);
    store_wide(re, to.numbers + 2 * at + W);
}

// The three roots of unity that a butterfly multiplies by: for W neighbours at once, or one for all of them.
template <class T>
struct Roots {
    T re[3], im[3];
};

template <class T>
THINWIRE_INLINE void read_roots(const float *table, size_t quarter, size_t p, Roots<T> &to) {
    for (size_t k = 0; k < 3; k++) {
        std::memcpy(&to.re[k], table + 2 * k * quarter + p, sizeof(T));
        std::memcpy(&to.im[k], table + (2 * k + 1) * quarter + p, sizeof(T));
    }
}

template <size_t W>
struct Four {
    typename Wide<W>::Of re[4], im[4];
};

// Four numbers `apart` from each other become their sums with the powers of 1, -i, -1 and i.
template <size_t W, class From>
THINWIRE_INLINE Four<W> sums_of_four(From from, size_t at, size_t apart) {
    Four<W> x, y;
#pragma GCC unroll 4
    for (size_t k = 0; k < 4; k++) take<W>(from, at + k * apart, x.re[k], x.im[k]);
    const auto sum_re = x.re[0] + x.re[2], sum_im = x.im[0] + x.im[2], odd_re = x.re[1] + x.re[3];
    const auto odd_im = x.im[1] + x.im[3], gap_re = x.re[0] - x.re[2], gap_im = x.im[0] - x.im[2];
    const auto turn_re = x.re[1] - x.re[3], turn_im = x.im[1] - x.im[3];
    y.re[0] = sum_re + odd_re, y.im[0] = sum_im + odd_im;
    y.re[1] = gap_re + turn_im, y.im[1] = gap_im - turn_re;
    y.re[2] = sum_re - odd_re, y.im[2] = sum_im - odd_im;
    y.re[3] = gap_re - turn_im, y.im[3] = gap_im + turn_re;
    return y;
}

// All but the first times their roots.
template <size_t W, class T>
THINWIRE_INLINE void turn(Four<W> &y, const Roots<T> &by) {
#pragma GCC unroll 3
    for (size_t k = 0; k < 3; k++) {
        const auto re = y.re[k + 1] * by.re[k] - y.im[k + 1] * by.im[k];
        y.im[k + 1] = y.re[k + 1] * by.im[k] + y.im[k + 1] * by.re[k];
        y.re[k + 1] = re;
    }
}

template <size_t W, class To>
THINWIRE_INLINE void put_four(const Four<W> &y, To to, size_t at, size_t apart) {
#pragma GCC unroll 4
    for (size_t k = 0; k < 4; k++) put<W>(y.re[k], y.im[k], to, at + k * apart);
}

// A pass while numbers lie as [s][n].
template <size_t W, class From>
void pass_along(From from, size_t n, size_t s, const float *table, Apart to) {
    const size_t quarter = n / 4;
    Roots<typename Wide<W>::Of> by;
    for (size_t p = 0; p < quarter; p += W) {
        read_roots(table, quarter, p, by);
        for (size_t q = 0; q < s; q++) {
            Four<W> y = sums_of_four<W>(from, q * n + p, quarter);
            turn(y, by);
            put_four<W>(y, to, q * quarter + p, s * quarter);
        }
    }
}

// A pass once they lie as [n][s].
template <size_t W>
void pass_across(Apart from, size_t n, size_t s, const float *table, Apart to) {
    const size_t quarter = n / 4;
    Roots<float> by;
    for (size_t p = 0; p < quarter; p++) {
        read_roots(table, quarter, p, by);
        for (size_t q = 0; q < s; q += W) {
            Four<W> y = sums_of_four<W>(from, q + s * p, s * quarter);
            turn(y, by);
            put_four<W>(y, to, q + 4 * s * p, s);
        }
    }
}

// Transforms of n numbers that are left, s of them, where they are, and where the next pass may write.
struct Unfinished {
    Apart here, other;
    size_t n, s;
    const float *table;
};

inline void step(Unfinished &x) {
    x.table += 6 * (x.n / 4);
    x.n /= 4;
    x.s *= 4;
    std::swap(x.here, x.other);
}

// All passes until n <= 8, in two buffers; the numbers may come from `other`.
template <size_t W, class From>
Unfinished transform(From from, size_t size, const float *table, Apart here, Apart other) {
    Unfinished x{other, here, size, 1, table};
    if constexpr (W == 1) {
        for (size_t i = 0; i < size; i++) {
            typename Wide<W>::Of re, im;
            take<W>(from, i, re, im);
            put<W>(re, im, here, i);
        }
        std::swap(x.here, x.other);
    } else {
        pass_along<W>(from, x.n, x.s, x.table, x.other);
        for (step(x); x.s < W; step(x)) pass_along<W>(x.here, x.n, x.s, x.table, x.other);
        transpose<W>(x.here.re, x.s, x.n, x.other.re);
        transpose<W>(x.here.im, x.s, x.n, x.other.im);
        std::swap(x.here, x.other);
    }
    for (; x.n > 8; step(x)) pass_across<W>(x.here, x.n, x.s, x.table, x.other);
    return x;
}

// The last two passes at once: the very last is of radix 2, and its roots are 1.
template <size_t W, class To>
void last_eight(const Unfinished &x, To to) {
    Roots<float> even, odd;
    read_roots(x.table, 2, 0, even);
    read_roots(x.table, 2, 1, odd);
    for (size_t q = 0; q < x.s; q += W) {
        Four<W> a = sums_of_four<W>(x.here, q, 2 * x.s), b = sums_of_four<W>(x.here, q + x.s, 2 * x.s);
        turn(a, even);
        turn(b, odd);
#pragma GCC unroll 4
        for (size_t k = 0; k < 4; k++) {
            put<W>(a.re[k] + b.re[k], a.im[k] + b.im[k], to, q + k * x.s);
            put<W>(a.re[k] - b.re[k], a.im[k] - b.im[k], to, q + (k + 4) * x.s);
        }
    }
}

// What is left, where n is 8, 4, 2 or 1; `to` may be `x.other`.
template <size_t W, class To>
void finish(const Unfinished &x, To to) {
    if (x.n == 8) return last_eight<W>(x, to);
    for (size_t q = 0; q < x.s; q += W) {
        typename Wide<W>::Of a, b, c, d;
        if (x.n == 4) {
            put_four<W>(sums_of_four<W>(x.here, q, x.s), to, q, x.s);
            continue;
        }
        take<W>(x.here, q, a, b);
        if (x.n == 1) {
            put<W>(a, b, to, q);
            continue;
        }
        take<W>(x.here, q + x.s, c, d);
        put<W>(a + c, b + d, to, q);
        put<W>(a - c, b - d, to, q + x.s);
    }
}
