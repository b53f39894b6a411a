"""Attention backends: who writes the keys and values of a step into the paged cache, and attends over it.

`backend` states what a backend is, `registry` knows all of them by name and chooses one; each of the other modules is
one backend, a thin binding of an operation of `kernels` or of an installed library. Imports torch and `kernels`; is
imported by `engine.layers` (the protocol alone), `engine.models` and `engine.worker`.
"""
