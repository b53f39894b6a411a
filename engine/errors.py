"""The errors a user of Orrery may meet: each message is one sentence that says what is wrong and what is allowed."""


class OrreryError(Exception):
    """Base of every error that is the caller's to mend; the command line prints its message alone."""


class ConfigError(OrreryError, ValueError):
    """An engine argument is out of range, or the arguments contradict each other or the machine."""


class ModelError(OrreryError, ValueError):
    """A model is missing, incomplete, of an unsupported architecture, or does not fit."""


class RequestError(OrreryError, ValueError):
    """One request is invalid; the engine and every other request go on untouched."""


class WorkloadError(OrreryError, ValueError):
    """A file of requests for a benchmark is not of its form, or what is asked for cannot be made."""


class TraceError(OrreryError, ValueError):
    """A file is not a trace, is damaged, or was written by an unknown version."""


class QueryError(OrreryError, ValueError):
    """A question about a trace that cannot be asked."""


class ForwardError(OrreryError, RuntimeError):
    """The forward pass of a step failed; the requests of that step are finished with an error."""
