// Slices in a basis of few columns: too narrow for what matrix products do well, so each slice goes through registers
// once. Sums run in the order of the columns (of the numbers, when projecting), one rounding for each operation.

constexpr size_t kWide = 8;  // numbers of one register
constexpr size_t kTall = 8;  // slices that are projected together

inline size_t padded(size_t n) { return (n + kWide - 1) / kWide * kWide; }

// Fewer than 8 coefficients.
inline void put_few(const Eight &sum, const float *offset, float part, size_t some, float *out) {
    for (size_t j = 0; j < some; j++) out[j] = offset ? sum[j] + offset[j] * part : sum[j];
}

// Coefficients from `at` to `at + 8` of `Rows` slices.
template <size_t Rows>
inline void project_rows(const Basis &in, const float *x, const float *offset, float part, size_t at, float *out) {
    const size_t stride = padded(in.kept), some = std::min(kWide, in.kept - at);
    Eight sum[Rows] = {};
    for (size_t k = 0; k < in.length; k++) {
        Eight column;
        load_eight(in.columns + k * stride + at, column);
#pragma GCC unroll 8
        for (size_t r = 0; r < Rows; r++) sum[r] += x[r * in.length + k] * column;
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < Rows; r++) {
        const size_t here = r * in.kept + at;
        if (some < kWide) {
            put_few(sum[r], offset ? offset + here : nullptr, part, some, out + here);
            continue;
        }
        if (offset) {
            Eight mean;
            load_eight(offset + here, mean);
            sum[r] += mean * part;
        }
        store_eight<false>(sum[r], out + here);
    }
}

void basis_project(const Basis &in, const float *x, size_t rows, const float *offset, float part, float *out) {
    size_t r = 0;
    for (; r + kTall <= rows; r += kTall)
        for (size_t at = 0; at < in.kept; at += kWide)
            project_rows<kTall>(in, x + r * in.length, offset ? offset + r * in.kept : nullptr, part, at,
                                out + r * in.kept);
    for (; r < rows; r++)
        for (size_t at = 0; at < in.kept; at += kWide)
            project_rows<1>(in, x + r * in.length, offset ? offset + r * in.kept : nullptr, part, at,
                            out + r * in.kept);
}

// Numbers of a slice, 8 * Vectors of them: mean * part + U q, or what is left of `given` without that.
template <size_t Vectors, bool Stream>
inline void rebuild_numbers(const float *columns, size_t stride, const float *q, size_t kept, const float *mean,
                            float part, const float *given, float *out) {
    Eight sum[Vectors] = {};
    if (mean)
#pragma GCC unroll 8
        for (size_t v = 0; v < Vectors; v++) {
            load_eight(mean + v * kWide, sum[v]);
            sum[v] *= part;
        }
    for (size_t j = 0; j < kept; j++)
#pragma GCC unroll 8
        for (size_t v = 0; v < Vectors; v++) {
            Eight column;
            load_eight(columns + j * stride + v * kWide, column);
            sum[v] += q[j] * column;
        }
#pragma GCC unroll 8
    for (size_t v = 0; v < Vectors; v++) {
        if (given) {
            Eight whole;
            load_eight(given + v * kWide, whole);
            sum[v] = whole - sum[v];
        }
        store_eight<Stream>(sum[v], out + v * kWide);
    }
}

// The last numbers of a slice, fewer than 8.
inline void rebuild_rest(const float *columns, size_t stride, const float *q, size_t kept, const float *mean,
                         float part, const float *given, size_t some, float *out) {
    alignas(32) float means[kWide] = {}, wholes[kWide] = {}, outs[kWide];
    if (mean) std::memcpy(means, mean, some * sizeof(float));
    if (given) std::memcpy(wholes, given, some * sizeof(float));
    rebuild_numbers<1, false>(columns, stride, q, kept, mean ? means : nullptr, part, given ? wholes : nullptr, outs);
    std::memcpy(out, outs, some * sizeof(float));
}

template <bool Stream>
void rebuild_rows(const Basis &in, const float *q, size_t rows, const float *mean, float part, const float *given,
                  float *out) {
    constexpr size_t kVectors = 8, kMany = kVectors * kWide;
    const size_t stride = padded(in.length);
    for (size_t r = 0; r < rows; r++) {
        const size_t first = r * in.length;
        const float *here = q + r * in.kept;
        size_t at = 0;
        const auto from = [&](const float *x) { return x ? x + first + at : nullptr; };
        for (; at + kMany <= in.length; at += kMany)
            rebuild_numbers<kVectors, Stream>(in.columns + at, stride, here, in.kept, from(mean), part, from(given),
                                              out + first + at);
        for (; at + kWide <= in.length; at += kWide)
            rebuild_numbers<1, Stream>(in.columns + at, stride, here, in.kept, from(mean), part, from(given),
                                       out + first + at);
        if (at < in.length)
            rebuild_rest(in.columns + at, stride, here, in.kept, from(mean), part, from(given), in.length - at,
                         out + first + at);
    }
}

// `given` may be nullptr, as may `mean`.
void basis_rebuild(const Basis &in, const float *q, size_t rows, const float *mean, float part, const float *given,
                   float *out) {
    if (in.length % kWide == 0 && can_stream(out, rows * in.length)) {
        rebuild_rows<true>(in, q, rows, mean, part, given, out);
        end_streams();
    } else {
        rebuild_rows<false>(in, q, rows, mean, part, given, out);
    }
}
