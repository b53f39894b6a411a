"""Workloads: which requests come when, made up or read from public formats, for benchmarks and the simulator.

`open_workload` takes a user's words, a file or `synthetic:…`, and gives a `Workload`: `WorkloadRequest`s in the order
of their arrival, read one by one, and a line that says how the file was understood.

| file | idea |
| --- | --- |
| `request.py` | what one request is |
| `prompt_shape.py` | a prompt known by its length and by what it shares |
| `workload.py`, `detection.py` | the way in; which format a file has |
| `arrivals.py`, `lengths.py`, `synthetic_spec.py` | workloads that are made up |
| `synthetic.py` | random prompts of real tokens, as vLLM's benchmarks make them |
| `azure.py`, `burstgpt.py`, `hash_ids.py`, `trace.py` | one kind of file with arrival times each |
| `sharegpt.py`, `custom.py`, `token_ids.py` | one without each |
| `reading.py` | what the readers share |

A reader takes whatever needs a tokenizer as a function, and whatever is random as a generator; so nothing here imports
torch, reads a clock or draws a number of its own. A bad file is told of by one sentence with the place and the reason.
"""

from engine.workload.prompt_shape import PromptShape, Span
from engine.workload.request import WorkloadRequest
from engine.workload.workload import FORMATS, TIMED_FORMATS, Workload, open_workload

__all__ = ["FORMATS", "TIMED_FORMATS", "PromptShape", "Span", "Workload", "WorkloadRequest", "open_workload"]
