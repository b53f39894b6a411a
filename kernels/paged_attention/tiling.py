"""How the Triton kernel cuts its work: tile sizes, and into how many parts a context is split. Host integers only.

A captured graph is replayed over other lengths than it was captured with, so nothing here may depend on them: what is
asked for is the most that can occur.
"""

from __future__ import annotations

from typing import NamedTuple

from kernels.jit import cdiv, next_power_of_2

#: Elements of the keys that are attended to at once, of 16-bit and of 32-bit ones: enough in flight to keep the memory
#: busy, and few enough that the products, which for 32 bits run outside the tensor cores, stay in registers.
KEY_TILE_ELEMENTS = {2: 8192, 4: 2048}

#: Keys that a split holds at least: a smaller one costs more to join than it saves.
MIN_SPLIT_KEYS = 512

#: Splits at most; a row's are joined by one program.
MAX_SPLITS = 64

#: Programs that may run at once on one streaming multiprocessor.
PROGRAMS_PER_PROCESSOR = 2


class Tiling(NamedTuple):
    """The compile-time sizes of a launch of `attend`."""

    block_m: int
    """Rows of a tile: queries × the query heads of one KV head."""
    block_n: int
    """Keys that are attended to at once."""
    block_d: int
    """head_size, rounded up to a power of 2."""
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, head_size: int, group_size: int, max_query_len: int, itemsize: int) -> Tiling:
        """What suits a launch.

        Args:
            head_size: elements of a head.
            group_size: query heads that share a KV head.
            max_query_len: most queries of one request.
            itemsize: bytes of an element.
        """
        block_d = max(16, next_power_of_2(head_size))
        block_n = min(64, max(16, KEY_TILE_ELEMENTS[itemsize] // block_d))
        # 16 rows are the least that a tensor core takes. Chunks get as many as the registers hold.
        if itemsize == 4:
            sizes: tuple[int, ...] = (16, 32)
        else:
            sizes = (16, 64, 128) if block_d <= 128 else (16, 64)
        rows = group_size * max_query_len
        fitting = next((size for size in sizes if rows <= size), sizes[-1])
        block_m = max(fitting, next_power_of_2(group_size))
        return cls(block_m, block_n, block_d, num_warps=8 if block_m > 64 else 4, num_stages=3)


def num_tiles(tile_queries: int, max_query_len: int, num_tokens: int, num_requests: int) -> int:
    """Tiles that are enough for any way in which the tokens may be shared out among the requests."""
    if max_query_len <= tile_queries:
        return num_requests
    return num_tokens // tile_queries + num_requests


def choose_num_splits(num_programs: int, most_keys: int, num_processors: int) -> int:
    """Parts to cut contexts into: more than one where there are too few programs to occupy the GPU.

    Args:
        num_programs: tiles × KV heads.
        most_keys: most keys that one program would attend to.
        num_processors: streaming multiprocessors of the GPU.
    """
    wanted = PROGRAMS_PER_PROCESSOR * num_processors // max(1, num_programs)
    worthwhile = cdiv(most_keys, MIN_SPLIT_KEYS)
    return max(1, min(wanted, worthwhile, MAX_SPLITS))
