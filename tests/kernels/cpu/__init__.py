"""The compiled CPU kernels."""
