"""Models: where they are (`store`, torch-free), how they are fetched, loaded and computed.

May import `engine.layers`, `engine.attention` and `kernels`; nothing of the control plane.
"""
