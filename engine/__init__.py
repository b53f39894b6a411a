"""The engine: a vLLM-class LLM inference engine whose every decision is recorded.

Nothing is imported here, so that `engine.core` and `engine.trace` load without torch. The front doors are
`engine.llm.LLM` in Python and `engine.cli` in the terminal.
"""
