"""The CPU kernels: a decoder layer in C++, compiled once for the machine it runs on.

================  ==================================================================================
simd.h            one vector register of floats, on any processor
weights.h         how weights are stored in panels, and how they become floats
matmul.h          the matrix product: one row or thousands, the same bits
attention.h       attention over the paged cache
decoder_layer.cpp norm, projections, rotation, cache, attention and SwiGLU of one layer as one call
library.py        compiles them and loads them
packing.py        weights into panels, in full or in 8 or 4 bits
operations.py     what Python calls
================  ==================================================================================

A row of a batch comes out the same, bit for bit, whatever else is in the batch, in whatever chunks its prompt was
taken, and on any number of threads: no sum changes its order. Imports nothing of ours beside this folder.
"""
