"""A tiny language model, and data of which few tokens count, and unevenly."""

from typing import Any

import torch

from paceline.models._gpt import GPT
from paceline.models.gpt import GPTConfig

CONTEXT, VOCAB = 8, 11
MODEL: dict[str, Any] = {"name": "gpt", "vocab_size": VOCAB, "context_length": CONTEXT, "num_layers": 2}
MODEL |= {"num_heads": 2, "embedding_dim": 12}


def tiny_gpt(**fields: Any) -> GPT:
    """The model, with some fields changed; its weights are the same each time."""
    torch.manual_seed(0)
    model = GPTConfig.model_validate({**MODEL, **fields}).build()
    assert isinstance(model, GPT)
    return model


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
