"""`ModelShape`: the sizes of a decoder that its bytes and its arithmetic follow from. Needs no torch and no weights."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from engine.config import ModelFacts
from engine.errors import ModelError
from engine.models.architecture import Architecture, read_architecture


class ModelShape(NamedTuple):
    """The sizes of a Llama-shaped decoder."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    tied: bool = True
    """Whether the output head is the input embedding."""

    @classmethod
    def of(cls, architecture: Architecture) -> ModelShape:
        """Of a decoder that is described in full."""
        return cls(
            num_layers=architecture.num_layers,
            hidden_size=architecture.hidden_size,
            intermediate_size=architecture.intermediate_size,
            num_attention_heads=architecture.num_heads,
            num_kv_heads=architecture.num_kv_heads,
            head_size=architecture.head_size,
            vocab_size=architecture.vocab_size,
            tied=architecture.tie_word_embeddings,
        )

    @classmethod
    def of_folder(cls, folder: Path) -> ModelShape:
        """Out of the `config.json` of a model in Hugging Face format.

        Raises:
            ModelError: see `read_architecture`.
        """
        return cls.of(read_architecture(folder))

    @classmethod
    def of_facts(cls, facts: ModelFacts) -> ModelShape:
        """Of the model of a trace.

        Raises:
            ModelError: the trace does not tell the intermediate size.
        """
        if not facts.intermediate_size:
            raise ModelError(f"The trace does not tell the intermediate size of {facts.name}.")
        return cls(
            num_layers=facts.num_layers,
            hidden_size=facts.hidden_size,
            intermediate_size=facts.intermediate_size,
            num_attention_heads=facts.num_attention_heads,
            num_kv_heads=facts.num_kv_heads,
            head_size=facts.head_size,
            vocab_size=facts.vocab_size,
            tied=facts.tie_word_embeddings,
        )

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of all layers: query, key, value, output; gate, up, down."""
        attention = self.head_size * (2 * self.num_attention_heads + 2 * self.num_kv_heads)
        return self.num_layers * self.hidden_size * (attention + 3 * self.intermediate_size)

    @property
    def head_weights(self) -> int:
        """Weights of the output head; the input embedding, of which a step reads single rows, is not counted."""
        return self.hidden_size * self.vocab_size

    @property
    def num_parameters(self) -> int:
        """All weights: matrices, embeddings, norms (two a layer and the last); biases are not counted."""
        embeddings = self.head_weights * (1 if self.tied else 2)
        return self.layer_weights + embeddings + self.hidden_size * (2 * self.num_layers + 1)

    @property
    def kv_values_per_token(self) -> int:
        """Elements of the keys and values of one token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size

    def attention_flops(self, pairs: int) -> int:
        """For so many pairs of a query and a key that it sees: their scores, and the sums of their values."""
        return 4 * self.num_layers * self.num_attention_heads * self.head_size * pairs
