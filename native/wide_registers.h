// Registers of W neighbouring numbers, and how numbers change places in them.

#define THINWIRE_INLINE __attribute__((always_inline)) inline  // or registers would travel through memory

template <size_t W>
struct Wide {
    typedef float Of __attribute__((vector_size(W * sizeof(float))));
    typedef int32_t Order __attribute__((vector_size(W * sizeof(float))));
};

#if defined(THINWIRE_AVX512)
constexpr size_t kWidest = 16;
#elif defined(THINWIRE_F16C)
constexpr size_t kWidest = 8;
#else
constexpr size_t kWidest = 4;
#endif

template <size_t W>
THINWIRE_INLINE typename Wide<W>::Of load_wide(const float *from) {
    typename Wide<W>::Of to;
    std::memcpy(&to, from, sizeof(to));
    return to;
}

template <class V>
THINWIRE_INLINE void store_wide(const V &from, float *to) {
    std::memcpy(to, &from, sizeof(V));
}

// Numbers of a and b, one after the other, in the order of the sequence.
template <size_t W, size_t... I>
THINWIRE_INLINE typename Wide<W>::Of chosen(typename Wide<W>::Of a, typename Wide<W>::Of b,
                                            std::index_sequence<I...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, I...);
#else
    return __builtin_shuffle(a, b, typename Wide<W>::Order{static_cast<int32_t>(I)...});
#endif
}

// {a0, a1, ...} and {b0, b1, ...} become {a0, b0, a1, ...}, in two registers; `part` is the way back.
template <size_t W, size_t... I>
THINWIRE_INLINE void zip(typename Wide<W>::Of &a, typename Wide<W>::Of &b, std::index_sequence<I...>) {
    const auto first = chosen<W>(a, b, std::index_sequence<(I / 2 + I % 2 * W)...>());
    b = chosen<W>(a, b, std::index_sequence<((I + W) / 2 + (I + W) % 2 * W)...>());
    a = first;
}

template <size_t W, size_t... I>
THINWIRE_INLINE void part(typename Wide<W>::Of &a, typename Wide<W>::Of &b, std::index_sequence<I...>) {
    const auto first = chosen<W>(a, b, std::index_sequence<(2 * I)...>());
    b = chosen<W>(a, b, std::index_sequence<(2 * I + 1)...>());
    a = first;
}

template <size_t W, size_t... I>
THINWIRE_INLINE typename Wide<W>::Of backwards(typename Wide<W>::Of a, std::index_sequence<I...>) {
    return chosen<W>(a, a, std::index_sequence<(W - 1 - I)...>());
}

template <size_t W>
using All = std::make_index_sequence<W>;

// [high][wide] -> [wide][high], both multiples of W. Zipping the halves of W registers, log W times, transposes them.
template <size_t W>
void transpose(const float *from, size_t high, size_t wide, float *to) {
    typename Wide<W>::Of held[W], zipped[W];
    for (size_t row = 0; row < high; row += W)
        for (size_t column = 0; column < wide; column += W) {
#pragma GCC unroll 16
            for (size_t i = 0; i < W; i++) held[i] = load_wide<W>(from + (row + i) * wide + column);
#pragma GCC unroll 4
            for (size_t step = 1; step < W; step *= 2) {
#pragma GCC unroll 8
                for (size_t i = 0; i < W / 2; i++) {
                    zip<W>(held[i], held[i + W / 2], All<W>());
                    zipped[2 * i] = held[i];
                    zipped[2 * i + 1] = held[i + W / 2];
                }
#pragma GCC unroll 16
                for (size_t i = 0; i < W; i++) held[i] = zipped[i];
            }
#pragma GCC unroll 16
            for (size_t i = 0; i < W; i++) store_wide(held[i], to + (column + i) * high + row);
        }
}
