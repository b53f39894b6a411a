"""An EAGLE head in training: it learns on its own guesses as well as on the target's states.

Drafting the second token, a head looks at a state of its own making, and at the third at one made of that. A head that
has only seen the target's states does poorly there; so it is trained as it will be used (EAGLE-3's training-time
test): pass s of a batch runs every position on the state that pass s - 1 guessed for it, and sees what it will see
then, the target's states up to s positions before, and its own behind them::

    keys of            pass 0          pass 1     pass 2
    position i sees    ≤ i - 2         i - 1      i           in pass 2
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, LlamaModel

from scripts.train_heads.examples import Batch
from scripts.train_heads.head import DraftVocabulary

#: The states, of size 1 and more, weigh less than the words that are made of them.
_STATE_WEIGHT = 0.5
#: Drafts in a row that are measured.
_MEASURED = 4
#: Of weights that have learned nothing, and how much of embedding and state goes through beside it. Beginning with
#: the target's last layer in place of noise, a head learns more slowly.
_NOISE, _PASSED_ON = 0.02, 0.5
_UNSEEN = torch.finfo(torch.float32).min


class EagleInTraining(nn.Module):
    """An EAGLE head, begun as one that passes on the state it is given, with the token's embedding added.

    Args:
        target: float32; its embedding and its word are used, and not trained.
        target_ids: [draft_vocab_size] int64, ascending.
        passes: drafts in a row that it learns to make.
    """

    def __init__(self, target: LlamaForCausalLM, target_ids: Tensor, passes: int) -> None:
        super().__init__()
        self.passes = passes
        shape = {**target.config.to_dict(), "num_hidden_layers": 1, "vocab_size": 1, "pad_token_id": None}
        self.shape = LlamaConfig(**{**shape, "bos_token_id": None, "eos_token_id": None})
        self.vocabulary = DraftVocabulary(target_ids, target.lm_head.weight.detach())
        self.embedding: Tensor
        embedding = target.model.embed_tokens.weight.detach()
        self.enlarged = _enlarged(embedding)
        self.register_buffer("embedding", embedding * self.enlarged)
        self.model = LlamaModel(self.shape)
        self.fc = nn.Linear(2 * self.shape.hidden_size, self.shape.hidden_size, bias=False)
        self.lm_head = nn.Parameter(self.vocabulary.output_head.clone())
        for weight in (self.fc.weight, *self.model.layers.parameters()):
            if weight.dim() > 1:
                nn.init.normal_(weight, std=_NOISE)
        unit = torch.eye(self.shape.hidden_size)
        self.fc.weight.data += _PASSED_ON * torch.cat((unit / self.enlarged, unit), dim=1)

    def loss(self, batch: Batch) -> Tensor:
        """Of the words and of the states, over all passes alike."""
        total = torch.zeros(())
        for number, states in enumerate(self.guesses(batch, self.passes)):
            learned = _drafted(batch, number)
            guessed, wanted = states[:, :-1][learned], batch.states[:, 1:][learned]
            words = self.vocabulary.cross_entropy(F.linear(guessed, self.lm_head), wanted)
            total = total + words + _STATE_WEIGHT * F.smooth_l1_loss(guessed, wanted)
        return total / self.passes

    @torch.no_grad()
    def hits(self, batch: Batch) -> list[Tensor]:
        """See `HeadInTraining`."""
        hits = []
        for number, states in enumerate(self.guesses(batch, _MEASURED)):
            drafted, wanted = states[:, :-2], batch.token_ids[:, 2:]
            hit = self.vocabulary.hit(F.linear(drafted, self.lm_head), wanted)
            # Draft `number` of the row that begins at i stands at i + number.
            hits.append(hit.roll(-number, dims=1))
        first, last = _drafted(batch, 0)[:, :-1], _drafted(batch, 0)[:, :-1].roll(1 - _MEASURED, dims=1)
        last[:, 1 - _MEASURED :] = False
        return [hit[first & last] for hit in hits]

    def guesses(self, batch: Batch, passes: int) -> list[Tensor]:
        """By pass, [texts, length, hidden_size]: at i the guess of the state i + 1; of pass s, from i = s on."""
        embeddings = F.embedding(batch.token_ids.roll(-1, dims=1), self.embedding)
        length = embeddings.shape[1]
        positions = torch.arange(length)
        cache, hidden, guesses = DynamicCache(), batch.states, []
        for number in range(passes):
            combined = self.fc(torch.cat((embeddings, hidden), dim=-1))
            mask = torch.full((1, 1, length, (number + 1) * length), _UNSEEN)
            mask[0, 0].masked_fill_(_seen(length, number), 0.0)
            output = self.model(
                inputs_embeds=combined,
                attention_mask=mask,
                position_ids=positions[None],
                cache=cache,
                use_cache=True,
            )
            guesses.append(output.last_hidden_state)
            hidden = guesses[-1].roll(1, dims=1)
        return guesses

    def tensors(self) -> dict[str, Tensor]:
        """See `HeadInTraining`."""
        layer = {f"layer.{name}": value for name, value in self.model.layers[0].state_dict().items()}
        of_embedding, of_state = self.fc.weight.detach().chunk(2, dim=1)
        fc = torch.cat((of_embedding * self.enlarged, of_state), dim=1)
        own = {"fc.weight": fc, "norm.weight": self.model.norm.weight, "lm_head.weight": self.lm_head}
        return {**layer, **own}

    def config(self) -> dict[str, Any]:
        """See `HeadInTraining`."""
        names = (
            "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
            "max_position_embeddings", "rms_norm_eps", "rope_parameters", "attention_bias", "mlp_bias",
        )  # fmt: skip
        values = self.shape.to_dict()
        return {"num_hidden_layers": 1, **{name: values[name] for name in names}}


def _enlarged(embedding: Tensor) -> float:
    """By how much embeddings are enlarged as they enter, so that their root mean square is about 1.

    SmolLM2's own, 0.14, are lost beside a state of 1.9 until the weights have grown, which takes longer than there is
    text. A power of two, since the weights of the finished head have to make up for it in bfloat16.
    """
    return 2.0 ** round(-math.log2(embedding.square().mean().sqrt().item()))


def _drafted(batch: Batch, number: int) -> Tensor:
    """[texts, length - 1] bool: places i where draft `number` is made, of token i + 2, after an answer has begun."""
    answers = batch.answers
    begun = torch.zeros_like(answers[:, :-1])
    begun[:, : answers.shape[1] - 2] = answers[:, 2:] & answers[:, 1:-1]
    begun[:, :number] = False
    return begun


def _seen(length: int, number: int) -> Tensor:
    """[length, (number + 1) × length] bool: the keys that each position sees in that pass."""
    query, key = torch.arange(length)[:, None], torch.arange(length)[None]
    own = [key == query - number + earlier for earlier in range(1, number + 1)]
    return torch.cat([key <= query - number, *own], dim=1)
