"""Where Orrery keeps what can be had again: fetched models, indexes of traces."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Orrery's folder for downloads: `$ORRERY_CACHE`, else `$XDG_CACHE_HOME/orrery`, else `~/.cache/orrery`."""
    if chosen := os.environ.get("ORRERY_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orrery"
