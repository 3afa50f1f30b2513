// Bins of real FFTs, as (real, imaginary), and pairs of orthonormal spectra; the scales come rounded from Python's.

// Rows of `length` numbers; a row of bins has one pair more, as the two real bins take one each.
void pairs_of_bins(const float *bins, size_t rows, size_t length, Scales by, const float *owed, float *out) {
    for (size_t r = 0; r < rows; r++, bins += length + 2, out += length) {
        const float *__restrict from = bins;
        float *__restrict to = out;
        if (owed) {
            const float *__restrict more = owed + r * length;
            for (size_t i = 2; i < length; i++) to[i] = from[i] * by.pair + more[i];
            to[0] = from[0] * by.pair * by.first + more[0];
            to[1] = from[length] * by.real + more[1];
        } else {
            for (size_t i = 2; i < length; i++) to[i] = from[i] * by.pair;
            to[0] = from[0] * by.pair * by.first;
            to[1] = from[length] * by.real;
        }
    }
}

void bins_of_pairs(const float *pairs, size_t rows, size_t length, Scales by, float *out) {
    for (size_t r = 0; r < rows; r++, pairs += length, out += length + 2) {
        const float *__restrict from = pairs;
        float *__restrict to = out;
        for (size_t i = 2; i < length; i++) to[i] = from[i] * by.pair;
        to[0] = from[0] * by.real;
        to[length] = from[1] * by.real;
        to[1] = to[length + 1] = 0.0f;
    }
}
