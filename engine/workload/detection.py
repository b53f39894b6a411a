"""Which format a workload file has, told by its first line; where two would do, the user is asked."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine.errors import WorkloadError
from engine.workload.reading import text_lines

#: Suffixes of traces of our own, which may be compressed.
_TRACE_SUFFIX = ".zst"

_BY_COLUMNS = {
    "azure": {"TIMESTAMP", "ContextTokens", "GeneratedTokens"},
    "burstgpt": {"Timestamp", "Request tokens", "Response tokens"},
}
_BY_KEYS = {
    "qwen-bailian": {"chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"},
    "custom": {"prompt"},
}
_WITHOUT_UNIT = {"timestamp", "input_length", "output_length"}


def detected_format(path: Path) -> str:
    """The format of a file, as `open_workload` names it.

    Raises:
        WorkloadError: none that is known, or more than one.
        OSError: the file cannot be read.
    """
    if path.suffix == _TRACE_SUFFIX:
        return "trace"
    line = next((line.strip() for _, line in text_lines(path) if line.strip()), "")
    if line.startswith("["):
        return "sharegpt"
    found = _of_keys(line, path) if line.startswith("{") else _of_columns(line)
    if found is None:
        raise WorkloadError(f"{path} is no workload of a known form; its format can be named (--workload-format).")
    return found


def _of_columns(line: str) -> str | None:
    columns = set(line.split(","))
    return next((name for name, wanted in _BY_COLUMNS.items() if wanted <= columns), None)


def _of_keys(line: str, path: Path) -> str | None:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if value.get("type") == "header" and "schema_version" in value:
        return "trace"
    found = next((name for name, wanted in _BY_KEYS.items() if wanted <= value.keys()), None)
    if found is None and value.keys() >= _WITHOUT_UNIT:
        raise WorkloadError(
            f"{path} does not say whether its times are seconds or milliseconds: name its format, mooncake "
            "(milliseconds, blocks of 512 tokens) or timed-trace (seconds, blocks of 16), with --workload-format."
        )
    return found
