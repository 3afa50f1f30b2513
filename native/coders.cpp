#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_coders(nb::module_ &) {}
