"""The control plane: a deterministic state machine that decides what every engine step does.

`EngineCore` (engine_core.py) is its door; `scheduler/` decides which requests run, `kv_cache/` which blocks hold
their KV; `request.py` is a request and how far it has come, `request_queue.py` the waiting queue (FCFS or priority),
`structured_output.py` guided decoding, `kv_transfer.py` KV from other engines; `messages.py` is the data that crosses
the boundary and `seams.py` the protocols behind which everything uncertain lives. Imports no torch, reads no clock,
draws no random number. Imports only `engine.trace`, `engine.config`, `engine.sampling_params`, `engine.inputs`,
`engine.logprobs` and `engine.errors`.
"""
