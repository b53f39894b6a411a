"""The backend `cpu`: the kernels in C++, which keep the keys of a block the way they are multiplied."""

from __future__ import annotations

from torch import Tensor

from engine.attention.backend import AttentionInputs, AttentionSpec
from kernels.cpu import library
from kernels.cpu.operations import CACHE_FORMATS, MOST_HEADS_OF_A_GROUP, Cache, Heads, Step, attention


class CpuPlan:
    """The tiles of a step, and the window of the layers that they are for."""

    def __init__(self, step: Step, sliding_window: int | None) -> None:
        self.step = step
        self.window = sliding_window or 0


class CpuBackend:
    """Keys as [num_blocks, num_kv_heads, head_size, block_size], values as [num_blocks, num_kv_heads, block_size,
    head_size]: a block is a panel of weights to the matrix kernel, both ways."""

    name = "cpu"
    captures_decodes = False

    def __init__(self, spec: AttentionSpec) -> None:
        self.spec = spec

    @staticmethod
    def why_unavailable(spec: AttentionSpec) -> str | None:
        """Another device, or no compiler."""
        if spec.device.type != "cpu":
            return f"it runs on a CPU, not on {spec.device.type}"
        if spec.dtype not in CACHE_FORMATS:
            return f"it keeps no cache of {str(spec.dtype).removeprefix('torch.')}"
        if spec.num_heads // spec.num_kv_heads > MOST_HEADS_OF_A_GROUP:
            return f"no more than {MOST_HEADS_OF_A_GROUP} query heads may share a KV head"
        return library.why_unavailable()

    def kv_cache_shapes(self, num_blocks: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """See `AttentionBackend`."""
        spec = self.spec
        return (
            (num_blocks, spec.num_kv_heads, spec.head_size, spec.block_size),
            (num_blocks, spec.num_kv_heads, spec.block_size, spec.head_size),
        )

    def plan(self, host: AttentionInputs, device: AttentionInputs, sliding_window: int | None) -> CpuPlan:
        """See `AttentionBackend`."""
        step = Step(
            host.block_tables,
            host.query_start_loc,
            host.seq_lens,
            host.slot_mapping,
            group=self.spec.num_heads // self.spec.num_kv_heads,
        )
        return CpuPlan(step, sliding_window)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        plan: CpuPlan,
        scale: float,
    ) -> Tensor:
        """See `AttentionBackend`."""
        spec = self.spec
        heads = Heads(None, spec.num_heads, spec.num_kv_heads, spec.head_size, plan.window, scale, 0.0)
        output = attention(query, key, value, heads, Cache.of(key_cache, value_cache), plan.step)
        return output.to(query.dtype)
