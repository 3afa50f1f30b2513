// Few numbers at their places among many.

// out = given (zeros without it), and values[i] added at the ascending positions at[i]; each stretch is put together in
// the first-level cache, so that memory is written once, in order.
template <bool Stream>
void scatter_run(const float *given, size_t n, const int64_t *at, const float *values, size_t count, float *out) {
    constexpr size_t kStretch = 1024;
    alignas(64) float stretch[kStretch];
    size_t next = 0;
    for (size_t low = 0; low < n; low += kStretch) {
        const size_t some = std::min(kStretch, n - low);
        if (given)
            std::memcpy(stretch, given + low, some * sizeof(float));
        else
            std::memset(stretch, 0, sizeof(stretch));
        for (; next < count && static_cast<size_t>(at[next]) < low + some; next++)
            stretch[static_cast<size_t>(at[next]) - low] += values[next];
        size_t i = 0;
        if (Stream)
            for (; i + 8 <= some; i += 8) {
                Eight numbers;
                load_eight(stretch + i, numbers);
                store_eight<true>(numbers, out + low + i);
            }
        std::memcpy(out + low + i, stretch + i, (some - i) * sizeof(float));
    }
}

void scatter(const float *given, size_t n, const int64_t *at, const float *values, size_t count, float *out) {
    if (can_stream(out, n)) {
        scatter_run<true>(given, n, at, values, count, out);
        end_streams();
    } else {
        scatter_run<false>(given, n, at, values, count, out);
    }
}
