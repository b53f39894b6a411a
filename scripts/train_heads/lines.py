"""Files of lines that grow while they are made, and may have been cut anywhere."""

from __future__ import annotations

from pathlib import Path


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file, without their ends; none if there is no file. What was cut off in the middle of a line is
    taken away, so that the next line can be appended."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
    return content[:whole].splitlines()
