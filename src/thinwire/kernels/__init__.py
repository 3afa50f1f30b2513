"""Number crunching behind the stages: a torch reference for any device, compiled C++ for the CPU.

Every kernel exists twice under one name. `kernels.reference` is the specification; the native one must
return the same bits. The dispatching modules (`quantise`, `sparse`, `coders`) choose per call.
"""
