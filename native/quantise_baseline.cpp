// The kernels for the instruction set that the build names.
#define THINWIRE_VARIANT baseline
#include "quantise_kernels.inc"

const thinwire::Kernels *thinwire::baseline_kernels() { return &thinwire::baseline::kernels; }
