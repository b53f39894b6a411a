"""`compilation_level=3`: layers as torch.compile makes them, in place of one operation after another."""

from __future__ import annotations

from typing import cast

import torch

from engine.models.decoder import Decoder, DecoderLayer


def compile_layers(decoder: Decoder) -> None:
    """Let torch.compile generate code for what lies between two attentions; it does so at the first steps.

    Attention stays as it is: how it runs depends on the lengths of the step, and code would be generated for each.
    """
    for layer in cast(list[DecoderLayer], list(decoder.layers)):
        attention = layer.self_attn
        setattr(attention, "attend", torch.compiler.disable(attention.attend))  # noqa: B010 - of this layer alone
        # For any number of tokens; all layers share the code.
        layer.compile(dynamic=True)
