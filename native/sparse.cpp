#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_sparse(nb::module_ &) {}
