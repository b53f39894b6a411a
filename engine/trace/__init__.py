"""The trace: the contract between the engine, the simulator and the app.

`events` defines every event type, `recorder` stamps and writes them (it owns the clock), `file` reads and writes
trace files. Imports msgspec, the standard library and the frozen data of `engine.config` and
`engine.sampling_params`; may be imported by everyone.
"""
