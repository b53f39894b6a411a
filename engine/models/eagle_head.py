"""`EagleHead`: one decoder layer that goes on from the target's own states (EAGLE, Li et al. 2024; EAGLE-2, -3).

A target's state says nearly which token follows, but not which one was drawn; with that token beside it, a single
layer can guess the next state, and out of it the token after::

    positions        i          i+1
    target state     h(i)       h(i+1)
    token drawn           t(i+1)     t(i+2)

    at i             fc [ embedding of t(i+1) ; h(i) ] ─► layer ─► norm ─► ĥ(i+1) ─► own output head ─► t(i+2)?
    at i+1, drafting fc [ embedding of t(i+2)?; ĥ(i+1) ] ─► …                                        ─► t(i+3)?

What enters at i has position i in the rotary embedding and its keys and values in slot i. Embeddings are the target's;
its output head is not used: the head's own has the rows of the tokens it may draft, `target_ids`.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.cpu import CpuPlan
from engine.layers.attention import AttentionMetadata
from engine.models.architecture import Architecture, shape_of
from engine.models.causal_lm import CausalLM
from engine.models.config_file import ConfigFile
from engine.models.decoder import Decoder
from engine.models.draft_head import (
    TARGET_IDS,
    draft_vocab_size,
    empty_target_ids,
    read_head_config,
    require_target_ids,
)
from engine.models.loading import load_tensors
from engine.models.packed_decoder import PackedDecoder
from kernels.cpu.draft_chain import Drafter, draft_chain, draft_pass
from kernels.cpu.packing import GROUP_SIZE, PackedMatrix, Quantization

EAGLE_HEAD = "EagleHead"


class EagleHead:
    """An EAGLE head.

    Args:
        decoder: its layer, norm and output head: a decoder of one layer over the draft vocabulary; the KV cache is
            bound to its attention as to that of any model.
        target: the model it drafts for, whose embeddings it shares.
        fc: [hidden_size, 2 × hidden_size], of embedding and state.
        target_ids: [draft_vocab_size] int64, ascending: the target's id of each token it drafts; None: all of them.
    """

    decoder: CausalLM

    def __init__(self, decoder: Decoder, target: CausalLM, fc: Tensor, target_ids: Tensor | None) -> None:
        self.decoder = decoder
        self.target_ids = target_ids
        self._target = target
        self._fc = fc

    def __call__(self, input_ids: Tensor, hidden: Tensor, positions: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Guess the states behind `hidden`.

        Args:
            input_ids: [n] int64, the tokens drawn from `hidden`.
            hidden: [n, hidden_size], states after the last norm, the target's or the head's own.
            positions: [n] int64, of `hidden`.
            metadata: where the keys and values are written and read.

        Returns:
            States after the head's norm, [n, hidden_size].
        """
        embeddings = self._target.embed(input_ids).to(hidden.dtype)
        combined = F.linear(torch.cat((embeddings, hidden), dim=-1).to(self._fc.dtype), self._fc)
        # With embeddings given, the decoder does not look at ids.
        return self.decoder(input_ids, positions, metadata, combined)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[n, hidden_size] → [n, draft_vocab_size] float32."""
        return self.decoder.compute_logits(hidden)

    def weight_bytes(self) -> int:
        """Bytes that a draft reads."""
        return self.decoder.weight_bytes() + self._fc.numel() * self._fc.element_size()


class PackedEagleHead(EagleHead):
    """The head as the CPU's kernels run it, a pass in one call.

    Args:
        decoder, target, fc, target_ids: as those of `EagleHead`.
    """

    def __init__(
        self, decoder: PackedDecoder, target: PackedDecoder, fc: PackedMatrix, target_ids: Tensor | None
    ) -> None:
        self.decoder = self._packed = decoder
        self.target_ids = target_ids
        self._embeddings = target
        self._combine = fc

    def __call__(self, input_ids: Tensor, hidden: Tensor, positions: Tensor, metadata: AttentionMetadata) -> Tensor:
        """As `EagleHead.__call__`; float32."""
        (plan,) = metadata.plans
        return draft_pass(self._drafter(), input_ids, positions, hidden, cast(CpuPlan, plan).step)

    def likeliest_chain(
        self, states: Tensor, first: Tensor, wanted: Tensor, block_tables: Tensor, confidence_threshold: float = 0.0
    ) -> Tensor:
        """See `kernels.cpu.draft_chain.draft_chain`."""
        return draft_chain(self._drafter(), states, first, wanted, block_tables, confidence_threshold)

    def weight_bytes(self) -> int:
        """Bytes that a draft reads."""
        return self.decoder.weight_bytes() + self._combine.num_bytes

    def _drafter(self) -> Drafter:
        return self._packed.drafter(self._embeddings, self._combine, self.target_ids)


def load_eagle_head(folder: Path, target: CausalLM, num_positions: int) -> EagleHead:
    """Load a head, to run as its target runs.

    Args:
        folder: of the head.
        target: the model it is to draft for.
        num_positions: positions it must be able to tell apart (max_model_len).

    Raises:
        ModelError: no EAGLE head, a damaged one, or one for another target.
    """
    config = read_head_config(folder, EAGLE_HEAD, target.architecture)
    architecture = eagle_architecture(config)
    target_ids = empty_target_ids(config, target.device)
    with torch.device(target.device):
        decoder = Decoder(architecture, num_positions, target.dtype).eval()
        fc = torch.empty(architecture.hidden_size, 2 * architecture.hidden_size, dtype=target.dtype)
    load_tensors(eagle_tensors(decoder, fc, target_ids), folder, EAGLE_HEAD)
    require_target_ids(target_ids, target.architecture.vocab_size, folder)
    if not isinstance(target, PackedDecoder):
        return EagleHead(decoder, target, fc, target_ids)
    quantization = _fewer_bits(architecture)
    packed = PackedDecoder(decoder, quantization)
    return PackedEagleHead(packed, target, PackedMatrix(fc, None, quantization), target_ids)


def _fewer_bits(architecture: Architecture) -> Quantization | None:
    """8 bits, where a layer's shape admits them: a draft costs half the bytes then, and as it is verified, nothing else
    depends on them."""
    features = architecture.hidden_size, architecture.num_heads * architecture.head_size, architecture.intermediate_size
    return "int8" if all(number % GROUP_SIZE["int8"] == 0 for number in features) else None


def eagle_architecture(config: ConfigFile) -> Architecture:
    """The head as a decoder of one layer, whose vocabulary is what it drafts."""
    return msgspec.structs.replace(
        shape_of(config, EAGLE_HEAD, config),
        vocab_size=draft_vocab_size(config),
        tie_word_embeddings=True,
        num_layers=1,
        sliding_windows=(None,),
    )


def eagle_tensors(decoder: Decoder, fc: Tensor, target_ids: Tensor | None) -> dict[str, Tensor]:
    """The tensors of a head by their names in its file."""
    tensors = {
        name.removeprefix("model.").replace("layers.0.", "layer.").replace("embed_tokens", "lm_head"): view
        for name, view in decoder.checkpoint_tensors().items()
    }
    tensors["fc.weight"] = fc
    return tensors if target_ids is None else {**tensors, TARGET_IDS: target_ids}
