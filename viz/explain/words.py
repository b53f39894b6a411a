"""Numbers and lists as the sentences say them."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.messages import RequestStatus

#: What a waiting request cannot go on without.
WAITS_FOR = {
    RequestStatus.WAITING_FOR_FSM: "its grammar is not ready",
    RequestStatus.WAITING_FOR_REMOTE_KVS: "its KV is on its way",
}


def count(number: int, thing: str) -> str:
    """`1 block`, `2 blocks`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def numbers(block_ids: list[int], most: int = 6) -> str:
    """Block numbers, the first few of many."""
    shown = " ".join(map(str, block_ids[:most]))
    return shown if len(block_ids) <= most else f"{shown} … ({len(block_ids)})"


def names(serials: Sequence[int], most: int = 6) -> str:
    """`r0, r1 and r4`, the first few of many."""
    shown = [f"r{serial}" for serial in serials[:most]]
    if len(serials) > most:
        return f"{', '.join(shown)} and {len(serials) - most:,} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `11th`."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number:,}{ending}"


def shortage(needed: int, available: int) -> str:
    """Why blocks are missing; free ones count whether or not they are still cached."""
    return f"needs {count(needed, 'block')}, free_block_queue holds {available:,}"


def work_on_blocks(*, sending: bool, receiving: bool) -> str:
    """What happens to blocks on which a connector works: they are being `sent`, `received`, or both."""
    return "sent and received" if sending and receiving else "sent" if sending else "received"
