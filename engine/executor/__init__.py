"""Executors: the real side of the `Executor` seam. `UniProcExecutor` drives one worker in the engine's own process."""
