"""Extra keys: what must agree beside the tokens for two blocks to hold the same KV.

Each is tagged by its kind, so that none can pass for another, and they stand in this order::

    ("lora", name, path)      in every block: an adapter changes the KV of all tokens
    ("mm", hash, offset)      in blocks with placeholders of an item; the offset counts from the block's start
    ("cache_salt", salt)      in the first block only: every later hash depends on it through its parent

Source: vLLM V1, whose bytes these are.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.inputs import LoRARequest, MultiModalFeature

#: What is mixed into a hash besides tokens, e.g. `(("cache_salt", "tenant-a"),)`.
ExtraKeys = tuple[tuple[str | int, ...], ...] | None


def extra_keys_of_block(
    start: int,
    end: int,
    cache_salt: str | None,
    lora: LoRARequest | None,
    mm_features: Sequence[MultiModalFeature],
) -> ExtraKeys:
    """The extra keys of the block of tokens `start` to `end - 1`; None if there are none."""
    keys: list[tuple[str | int, ...]] = []
    if lora is not None:
        keys.append(("lora", lora.lora_name, lora.lora_path))
    for feature in mm_features:
        if feature.offset < end and start < feature.offset + feature.length:
            keys.append(("mm", feature.mm_hash, feature.offset - start))
    if cache_salt and start == 0:
        keys.append(("cache_salt", cache_salt))
    return tuple(keys) or None
