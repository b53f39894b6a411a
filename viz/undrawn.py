"""What cannot be drawn is told in a sentence: a trace may contradict itself, and fail a figure that believed it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import OrreryError, TraceError

_LOG = logging.getLogger(__name__)


@contextmanager
def in_a_sentence() -> Iterator[None]:
    """What goes wrong in here and has no sentence yet gets one; where it went wrong stands in the app's log.

    Raises:
        OrreryError: as it was raised in here.
        TraceError: in place of any other error.
    """
    try:
        yield
    except OrreryError:
        raise
    except Exception as error:
        _LOG.exception("This could not be shown.")
        what = type(error).__name__ + (f": {error}" if str(error) else "")
        raise TraceError(f"This cannot be shown ({what}); the log of the app says where it went wrong.") from error
