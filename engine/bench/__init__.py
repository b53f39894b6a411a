"""Benchmarks: how fast the engine is on this machine, beside its peers in the same run.

`latency.py`, `throughput.py`, `datasets.py` what `orrery bench` measures, as vLLM does · `timed.py` requests that come
at their time · `python -m engine.bench` the comparison: `contenders.py` who with which settings, `peers/` one engine a
file, `process.py` a process that is measured, `comparison.py` the rounds, `ceilings.py` and `roofline.py` what the
machine allows, `results.py` the samples, `tables.py`, `chart.py`, `documents.py` what is shown, `install_peers.py`
where the peers come from ·
`control_plane.py` microseconds of a scheduling step, `vllm_control_plane.py` those of vLLM, in its own Python ·
`tracing.py` what recording a run costs, `quantization.py` what fewer bits cost in quality, `speculation.py` what drafts
bring, `guided.py` what a grammar costs. What is compared is interleaved, and medians are shown: machines are noisy.
"""
