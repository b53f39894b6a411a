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

import msgspec
import torch
from torch import Tensor

from engine.layers.attention import AttentionMetadata
from engine.models.architecture import Architecture, shape_of
from engine.models.causal_lm import CausalLM
from engine.models.config_file import ConfigFile
from engine.models.decoder import Decoder
from engine.models.draft_head import (
    TARGET_IDS,
    PackedProduct,
    Product,
    draft_vocab_size,
    empty_target_ids,
    product,
    read_head_config,
    require_target_ids,
)
from engine.models.loading import load_tensors
from engine.models.packed_decoder import PackedDecoder
from kernels.cpu.draft_chain import ChainWeights
from kernels.cpu.packing import GROUP_SIZE, Quantization

EAGLE_HEAD = "EagleHead"


class EagleHead:
    """An EAGLE head.

    Args:
        decoder: its layer, norm and output head: a decoder of one layer over the draft vocabulary; the KV cache is
            bound to its attention as to that of any model.
        fc: [n, 2 × hidden_size] → [n, hidden_size].
        fc_bytes: of the weights of `fc`.
        target_ids: [draft_vocab_size] int64, ascending: the target's id of each token it drafts; None: all of them.
    """

    def __init__(self, decoder: CausalLM, fc: Product, fc_bytes: int, target_ids: Tensor | None) -> None:
        self.decoder = decoder
        self.target_ids = target_ids
        self._fc = fc
        self._fc_bytes = fc_bytes

    def combine(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """What the layer is given.

        Args:
            embeddings: [n, hidden_size], the target's, of the tokens drawn from `hidden`.
            hidden: [n, hidden_size], states after the last norm, the target's or the head's own.

        Returns:
            [n, hidden_size].
        """
        return self._fc(torch.cat((embeddings.to(hidden.dtype), hidden), dim=-1))

    def __call__(self, embeddings: Tensor, hidden: Tensor, positions: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Guess the states behind `hidden`.

        Args:
            embeddings, hidden: as for `combine`.
            positions: [n] int64, of `hidden`.
            metadata: where the keys and values are written and read.

        Returns:
            States after the head's norm, [n, hidden_size].
        """
        # With embeddings given, the decoder does not look at ids.
        return self.decoder(positions, positions, metadata, self.combine(embeddings, hidden))

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[n, hidden_size] → [n, draft_vocab_size] float32."""
        return self.decoder.compute_logits(hidden)

    def chain_weights(self, target: CausalLM) -> ChainWeights | None:
        """What the CPU's kernels draft with; None if they do not run it.

        Args:
            target: whose embeddings the head shares.
        """
        if not (isinstance(self.decoder, PackedDecoder) and isinstance(target, PackedDecoder)):
            return None
        assert isinstance(self._fc, PackedProduct), "A packed head's products are packed."
        return self.decoder.chain_weights(target, self._fc.matrix, self.target_ids)

    def weight_bytes(self) -> int:
        """Bytes that a draft reads."""
        return self.decoder.weight_bytes() + self._fc_bytes


def load_eagle_head(
    folder: Path,
    target: Architecture,
    dtype: torch.dtype,
    device: torch.device,
    num_positions: int,
    *,
    packed: bool = False,
) -> EagleHead:
    """Load a head.

    Args:
        folder: of the head.
        target: the model it is to draft for.
        dtype: of weights and KV cache.
        device: where it will run.
        num_positions: positions it must be able to tell apart (max_model_len).
        packed: run by the CPU's compiled kernels, as the attention backend `cpu` needs it.

    Raises:
        ModelError: no EAGLE head, a damaged one, or one for another target.
    """
    config = read_head_config(folder, EAGLE_HEAD, target)
    architecture = eagle_architecture(config)
    target_ids = empty_target_ids(config, device)
    with torch.device(device):
        decoder = Decoder(architecture, num_positions, dtype).eval()
        fc = torch.empty(architecture.hidden_size, 2 * architecture.hidden_size, dtype=dtype)
    load_tensors(eagle_tensors(decoder, fc, target_ids), folder, EAGLE_HEAD)
    require_target_ids(target_ids, target.vocab_size, folder)
    fc_bytes = fc.numel() * fc.element_size()
    quantization = _fewer_bits(architecture)
    runs = PackedDecoder(decoder, quantization) if packed else decoder
    return EagleHead(runs, product(fc, None, packed=packed, quantization=quantization), fc_bytes, target_ids)


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
