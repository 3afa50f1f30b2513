// The kernels for the instruction set that the build names.
#define THINWIRE_VARIANT baseline
#include "loops.h"

const thinwire::Kernels *thinwire::baseline_kernels() { return &thinwire::baseline::table; }
