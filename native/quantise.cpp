#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_quantise(nb::module_ &) {}
