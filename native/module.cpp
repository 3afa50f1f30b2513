// The compiled kernels of thinwire: one module, one file for each family.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "kernels.h"

namespace nb = nanobind;

void bind_quantise(nb::module_ &m);
void bind_sparse(nb::module_ &m);
void bind_coders(nb::module_ &m);
void bind_integers(nb::module_ &m);
void bind_shares(nb::module_ &m);
void bind_casts(nb::module_ &m);
void bind_basis(nb::module_ &m);
void bind_spectra(nb::module_ &m);
void bind_checksum(nb::module_ &m);
void bind_chunked(nb::module_ &m);
void bind_codebook(nb::module_ &m);
void bind_blockfloat(nb::module_ &m);

NB_MODULE(_native, m) {
    m.doc() = "CPU kernels of thinwire; thinwire.kernels.reference is their specification.";
    m.def("use_variant", &thinwire::use_variant, nb::arg("name"),
          "Choose 'avx512', 'avx2' or 'baseline' loops; False if this machine lacks them.");
    bind_quantise(m);
    bind_sparse(m);
    bind_coders(m);
    bind_integers(m);
    bind_shares(m);
    bind_casts(m);
    bind_basis(m);
    bind_spectra(m);
    bind_checksum(m);
    bind_chunked(m);
    bind_codebook(m);
    bind_blockfloat(m);
}
