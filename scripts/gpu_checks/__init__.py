"""The parts of `scripts/gpu_check.py`: what is right (`correctness`), how fast it is (`speed`), the engine that both of
them step by hand (`engine`), and what they find (`report`)."""
