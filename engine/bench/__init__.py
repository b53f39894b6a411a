"""Benchmarks: how fast the engine is on this machine, beside Hugging Face `generate` in the same run.

`throughput.py` tokens per second of a batch · `control_plane.py` microseconds of a scheduling step ·
`vllm_control_plane.py` those of vLLM, in its own Python · `tracing.py` what recording a run costs ·
`python -m engine.bench` the first two, as a table. What is compared is interleaved, and medians are printed: machines
are noisy.
"""
