"""The loops that drive `EngineCore`: they wait, so that the core need not.

`synchronous` runs one step after the other in the caller's thread; `InprocClient` puts it behind the few calls that a
front door makes. A loop imports the core and is handed an executor.
"""
