"""The layers of a decoder, as plain torch modules: linear projections, norm, rotary embedding, attention.

Each is a thin holder of parameters around an operation of `kernels`; none knows of requests or of the scheduler. What
a forward pass needs beside the hidden states is handed in, never kept in a global. May be imported by
`engine.models` and `engine.worker`; imports torch, `kernels`, `engine.attention.backend`, and
`engine.models.architecture` for their sizes.
"""
