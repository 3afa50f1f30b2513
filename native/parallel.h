// Long loops on several threads. Threads live for one call: nothing survives into a fork, nothing is left at exit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace thinwire {

constexpr size_t kLeastPart = 1 << 15;  // elements: no thread starts for fewer

// Calls run(begin, end) for consecutive parts of [0, n), cut at multiples of `grain`. No part is shorter than a grain,
// unless all of it is.
template <class Run>
void in_parts(size_t n, size_t grain, int threads, const Run &run) {
    const size_t units = n / grain;
    const size_t parts = std::min({static_cast<size_t>(std::max(threads, 1)), units, n / kLeastPart});
    if (parts <= 1) return run(size_t{0}, n);
    std::vector<std::thread> helpers;
    helpers.reserve(parts - 1);
    size_t begin = 0;
    for (size_t part = 1; part < parts; part++) {
        const size_t end = units * part / parts * grain;
        try {
            helpers.emplace_back([&run, begin, end] { run(begin, end); });
        } catch (const std::system_error &) {  // no more threads to be had
            run(begin, end);
        }
        begin = end;
    }
    run(begin, n);
    for (std::thread &helper : helpers) helper.join();
}

}  // namespace thinwire
