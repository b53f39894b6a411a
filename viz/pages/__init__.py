"""The pages of the app: step through a trace, choose one, run the engine."""
