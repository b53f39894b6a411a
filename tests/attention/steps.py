"""Steps of several requests for the tests of attention backends, and the reference that they are compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.attention.backend import AttentionBackend, AttentionInputs, AttentionSpec

MAX_BLOCKS = 8


def to_device(inputs: AttentionInputs, device: torch.device) -> AttentionInputs:
    """The same step where the kernels read it."""
    return AttentionInputs(*(tensor.to(device) for tensor in inputs))


class Requests:
    """Some requests with random queries, keys and values, each with blocks of its own.

    Args:
        spec: the model's attention.
        lengths: tokens of each request.
    """

    def __init__(self, spec: AttentionSpec, lengths: list[int]) -> None:
        generator = torch.Generator().manual_seed(len(lengths))
        self.spec = spec
        self.tables = torch.randperm(len(lengths) * MAX_BLOCKS, generator=generator).int().view(-1, MAX_BLOCKS) + 1
        self.tensors = [
            [
                torch.randn(length, heads, spec.head_size, generator=generator)
                for heads in (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
            ]
            for length in lengths
        ]

    def run(
        self, backend: AttentionBackend[Any], steps: list[list[int]], sliding_window: int | None
    ) -> list[list[Tensor]]:
        """Run steps, each a number of tokens per request, through a backend; outputs per step and request."""
        device, dtype = self.spec.device, self.spec.dtype
        num_blocks = self.tables.numel() + 1
        # Poisoned: what was never written must not be read.
        shapes = backend.kv_cache_shapes(num_blocks)
        key_cache, value_cache = (torch.full(shape, float("nan"), dtype=dtype, device=device) for shape in shapes)
        computed, outputs = [0] * len(self.tensors), []
        for shares in steps:
            requests = [request for request, share in enumerate(shares) if share]
            inputs = self._inputs(requests, shares, computed)
            plan = backend.plan(inputs, to_device(inputs, device), sliding_window)
            query, key, value = (
                torch.cat([self.tensors[r][which][computed[r] : computed[r] + shares[r]] for r in requests]).to(
                    device, dtype
                )
                for which in range(3)
            )
            scale = self.spec.head_size**-0.5
            output = backend.attend(query, key, value, key_cache, value_cache, plan, scale)
            assert output.is_contiguous()
            outputs.append(list(output.float().cpu().split([shares[r] for r in requests])))
            for request in requests:
                computed[request] += shares[request]
        return outputs

    def _inputs(self, requests: list[int], shares: list[int], computed: list[int]) -> AttentionInputs:
        size = self.spec.block_size
        positions = [torch.arange(computed[r], computed[r] + shares[r]) for r in requests]
        slots = [self.tables[r].long()[p // size] * size + p % size for r, p in zip(requests, positions, strict=True)]
        return AttentionInputs(
            self.tables[requests],
            torch.tensor([0, *(shares[r] for r in requests)]).cumsum(0),
            torch.tensor([computed[r] + shares[r] for r in requests]),
            torch.cat(slots),
        )

    def expected(self, steps: list[list[int]], sliding_window: int | None) -> list[list[Tensor]]:
        """The outputs by the definition, in float64."""
        computed, outputs = [0] * len(self.tensors), []
        for shares in steps:
            of_step = []
            for request, share in enumerate(shares):
                if share:
                    end = computed[request] + share
                    of_step.append(self._defined(request, computed[request], end, sliding_window))
                    computed[request] = end
            outputs.append(of_step)
        return outputs

    def _defined(self, request: int, begin: int, end: int, sliding_window: int | None) -> Tensor:
        query, key, value = (tensor.to(self.spec.dtype).double() for tensor in self.tensors[request])
        group = self.spec.num_heads // self.spec.num_kv_heads
        key, value = (tensor[:end].repeat_interleave(group, 1) for tensor in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[begin:end], key) * self.spec.head_size**-0.5
        distance = torch.arange(begin, end)[:, None] - torch.arange(end)
        hidden = distance < 0
        if sliding_window is not None:
            hidden |= distance >= sliding_window
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, value).float()
