"""The network behind `gpt`."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Of GPT-2, as in its published code: github.com/openai/gpt-2, src/model.py.
_STD = 0.02
_POSITION_STD = 0.01


class GPT(nn.Module):
    """GPT-2: int64 tokens [n, context] -> logits [n, context, vocab_size].

    The forward pass is `embed`, the blocks in order, and `head`. A block takes and returns one tensor [n, context,
    embedding_dim]: see `pipeline_links`.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        context_length: int,
        num_layers: int,
        num_heads: int,
        embedding_dim: int,
        dropout: float,
        bias: bool,
        tie_embeddings: bool,
    ) -> None:
        super().__init__()
        self.context_length = context_length
        self.token_embedding = nn.Embedding(vocab_size, embedding_dim)
        self.position_embedding = nn.Embedding(context_length, embedding_dim)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(embedding_dim, num_heads, dropout, bias) for _ in range(num_layers))
        self.norm = nn.LayerNorm(embedding_dim, bias=bias)
        # None when tied: with one owner, the shared weights are once in the state dict
        self.output = None if tie_embeddings else nn.Linear(embedding_dim, vocab_size, bias=False)
        self._initialise()

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits for the token after each of `tokens`, from that one and those before it."""
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the input of the first block, [n, context, embedding_dim]: token and position embeddings.

        Raises:
            ValueError: there are more tokens than the context is long.
        """
        length = tokens.shape[1]
        if length > self.context_length:
            raise ValueError(
                f"got {length} tokens, more than model.context_length of {self.context_length}: raise it, or lower the "
                "context length of the data"
            )
        positions = torch.arange(length, device=tokens.device)
        embedded: Tensor = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        return embedded

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits from the output of the last block."""
        owner = self.token_embedding if self.output is None else self.output
        return F.linear(self.norm(hidden), owner.weight)

    def pipeline_links(self) -> list[tuple[Callable[[Tensor], Tensor], list[nn.Module]]]:
        """The parts of the forward pass in order, each with the modules that it uses, for pipeline parallelism."""
        owner = self.token_embedding if self.output is None else self.output
        return [
            (self.embed, [self.token_embedding, self.position_embedding, self.dropout]),
            *((block, [block]) for block in self.blocks),
            (self.head, [self.norm, owner]),
        ]

    def _initialise(self) -> None:
        # Every block adds two projections to what passes through it: their sum must not grow with the number of
        # blocks (Radford et al. 2019, section 2.3).
        projection_std = _STD / (2 * len(self.blocks)) ** 0.5
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=projection_std if name.endswith("projection") else _STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.position_embedding.weight, std=_POSITION_STD)


class Block(nn.Module):
    """Attention and MLP, each with a LayerNorm before and a residual connection; keeps the shape [n, context, dim]."""

    def __init__(self, dim: int, num_heads: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim, bias=bias)
        self.attention = Attention(dim, num_heads, dropout, bias)
        self.mlp_norm = nn.LayerNorm(dim, bias=bias)
        self.mlp = FeedForward(dim, dropout, bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """The block's output."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        added: Tensor = hidden + self.mlp(self.mlp_norm(hidden))
        return added


class Attention(nn.Module):
    """Causal self-attention (Vaswani et al. 2017, arXiv:1706.03762): [n, context, dim] to the same shape."""

    def __init__(self, dim: int, num_heads: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = nn.Linear(dim, 3 * dim, bias=bias)
        self.projection = nn.Linear(dim, dim, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the attention output; each position attends to itself and the positions before it."""
        # [n, context, 3 * dim] -> three of [n, heads, context, dim / heads]
        query, key, value = self.query_key_value(hidden).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        dropped = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropped, is_causal=True)
        taken: Tensor = self.dropout(self.projection(mixed.transpose(1, 2).flatten(2)))
        return taken


class FeedForward(nn.Module):
    """Two linear layers with GELU between, applied to each position: [n, context, dim] to the same shape."""

    def __init__(self, dim: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.expansion = nn.Linear(dim, 4 * dim, bias=bias)
        # GPT-2 takes the approximation of Hendrycks and Gimpel 2016 (arXiv:1606.08415)
        self.activation = nn.GELU(approximate="tanh")
        self.projection = nn.Linear(4 * dim, dim, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """The MLP's output."""
        out: Tensor = self.dropout(self.projection(self.activation(self.expansion(hidden))))
        return out
