"""A decoder-only transformer."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from paceline.config.base import Contradiction
from paceline.config.limits import Width
from paceline.models.base import ModelConfig

if TYPE_CHECKING:
    from torch import nn


class GPTConfig(ModelConfig):
    """GPT-2 (Radford et al. 2019): pre-norm blocks of causal self-attention and a GELU MLP, learned positions.

    The defaults fit the bytes of `text_file`. GPT-2's smallest, of 124 million parameters, is `vocab_size: 50257`
    (or 50304, which GPUs like better), `context_length: 1024`, 12 layers, 12 heads, `embedding_dim: 768`.
    """

    name: Literal["gpt"]
    """Selects this model."""
    vocab_size: Width = 256
    """Number of different tokens, 1 to 10^7."""
    context_length: Annotated[int, Field(ge=1, le=2**20)] = 128
    """Most tokens that the model can look at, 1 to 2^20. At least the data's."""
    num_layers: Annotated[int, Field(ge=1, le=1000)] = 4
    """Number of blocks, 1 to 1,000."""
    num_heads: Annotated[int, Field(ge=1, le=65_536)] = 4
    """Attention heads of each block, 1 to 65,536; `embedding_dim` is a multiple of it."""
    embedding_dim: Annotated[int, Field(ge=1, le=65_536)] = 128
    """Width of the model, 1 to 65,536; the MLP inside a block is four times as wide."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the embeddings, attention weights and blocks' outputs that is dropped in training, in [0, 1). 0
    disables."""
    bias: bool = True
    """Add a bias in the linear layers and LayerNorms; the output layer never has one."""
    tie_embeddings: bool = True
    """Use the token embedding's weights for the output layer too (Press and Wolf 2017, arXiv:1608.05859)."""

    def contradictions(self) -> Iterator[Contradiction]:
        """A width that the heads cannot share evenly."""
        dim, heads = self.embedding_dim, self.num_heads
        if dim % heads == 0:
            return
        below, above = dim // heads * heads, dim // heads * heads + heads
        hint = f"the nearest embedding_dim that is: {f'{below} or {above}' if below else above}"
        fields = ("embedding_dim", "num_heads")
        # the other one may be the default, which is not in the user's config
        first = fields if "embedding_dim" in self.model_fields_set else fields[::-1]
        yield Contradiction(f"embedding_dim {dim} is not a multiple of num_heads {heads}", hint, first)

    def build(self) -> "nn.Module":
        """The network: int64 tokens [n, context] to logits [n, context, vocab_size], where context may be shorter."""
        from paceline.models._gpt import GPT

        return GPT(
            vocab_size=self.vocab_size,
            context_length=self.context_length,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            embedding_dim=self.embedding_dim,
            dropout=self.dropout,
            bias=self.bias,
            tie_embeddings=self.tie_embeddings,
        )
