"""A tiny language model's data, in which few tokens count, and unevenly."""

from typing import Any

import torch

CONTEXT, VOCAB = 8, 11
MODEL: dict[str, Any] = {"name": "gpt", "vocab_size": VOCAB, "context_length": CONTEXT, "num_layers": 2}
MODEL |= {"num_heads": 2, "embedding_dim": 12}


class Sentences:
    """Random tokens, of which the first 1 to 8 have a target that counts; one sentence in seven has none."""

    def __init__(self, samples: int) -> None:
        generator = torch.Generator().manual_seed(0)
        text = torch.randint(0, VOCAB, (samples, CONTEXT + 1), generator=generator)
        lengths = torch.arange(samples) * 5 % 8 + 1
        lengths[::7] = 0
        self.tokens = text[:, :-1]
        self.targets = text[:, 1:].masked_fill(torch.arange(CONTEXT) >= lengths[:, None], -100)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tokens[index], self.targets[index]
