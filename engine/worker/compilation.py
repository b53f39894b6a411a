"""`compilation_level=3`: layers as torch.compile makes them, in place of one operation after another."""

from __future__ import annotations

from typing import Any

import torch

from engine.attention.backend import AttentionBackend
from engine.models.decoder import Decoder


def compile_layers(decoder: Decoder, backend: AttentionBackend[Any]) -> None:
    """Let torch.compile generate code for what lies between two attentions; it does so at the first steps.

    Attention stays as it is: how it runs depends on the lengths of the step, and code would be generated for each.
    """
    setattr(backend, "attend", torch.compiler.disable(backend.attend))  # noqa: B010 - of this object, not of its class
    for layer in decoder.layers:
        # Any number of tokens; all layers share the code.
        layer.compile(dynamic=True)
