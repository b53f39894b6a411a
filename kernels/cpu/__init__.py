"""The CPU kernels: a decoder layer in C++, compiled once for the machine it runs on.

================  ==================================================================================
simd.h            one vector register of floats, on any processor
weights.h         how weights are stored in panels, and how they become floats
matmul.h          the matrix product: one row or thousands, the same bits
attention.h       attention over the paged cache
decoder_layer.h   norm, projections, rotation, cache, attention and SwiGLU of one layer
draft_chain.h     a drafter's pass, and its drafts one behind another
operations.cpp    what Python calls: one parallel region each
library.py        compiles them and loads them
packing.py        weights into panels, in full or in 8 or 4 bits
memory.py         where weights lie: in huge pages
operations.py     the same on tensors
draft_chain.py    drafters on tensors
================  ==================================================================================

A row of a batch comes out the same, bit for bit, whatever else is in the batch, in whatever chunks its prompt was
taken, and on any number of threads: no sum changes its order. Imports nothing of ours beside this folder.
"""
