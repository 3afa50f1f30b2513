// The largest magnitudes of each chunk, bound to Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>

#include "wire.h"

namespace nb = nanobind;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using PositionsOut = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// `each` of every whole chunk, `rest` of what is left behind the last.
void largest_in_chunks(Floats x, size_t chunk, size_t each, size_t rest, PositionsOut out) {
    const size_t n = x.size();
    if (chunk == 0 || each > chunk || rest > n % chunk || out.size() != n / chunk * each + rest)
        throw thinwire::CodecError("Positions of chunks need one place for each that is chosen; check the counts.");
    nb::gil_scoped_release release;
    int64_t *to = out.data();
    for (size_t low = 0; low < n; low += chunk) {
        const size_t length = std::min(chunk, n - low), k = length == chunk ? each : rest;
        if (k == length) {
            for (size_t i = 0; i < k; i++) to[i] = static_cast<int64_t>(i);
        } else {
            thinwire::largest(x.data() + low, length, k, to);
        }
        for (size_t i = 0; i < k; i++) to[i] += static_cast<int64_t>(low);
        to += k;
    }
}

}  // namespace

void bind_chunked(nb::module_ &m) { m.def("largest_in_chunks", &largest_in_chunks); }
