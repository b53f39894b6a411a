"""What belongs to a prompt beside its tokens, and makes its KV different."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class LoRARequest(msgspec.Struct, frozen=True, kw_only=True):
    """A low-rank adapter of the model's weights."""

    lora_name: Annotated[str, Meta(description="the name by which requests ask for it")]
    lora_path: Annotated[str, Meta(description="where its weights are: a name may come to mean others")]


class MultiModalFeature(msgspec.Struct, frozen=True, kw_only=True):
    """An image or another item of a prompt, for which placeholder tokens stand."""

    mm_hash: Annotated[str, Meta(description="hash of its content")]
    offset: Annotated[int, Meta(description="position of its first placeholder")]
    length: Annotated[int, Meta(description="number of its placeholders")]
