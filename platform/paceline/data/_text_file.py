"""The data set behind `text_file`."""

import torch
from torch import Tensor
from torch.utils.data import Dataset

from paceline.data._text import count_windows
from paceline.tasks.output import IGNORE_INDEX


def as_tensor(text: bytes) -> Tensor:
    """The bytes of a text: uint8 of shape [bytes]."""
    # of a copy, since torch warns of memory that it must not write to; torch refuses an empty one
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


class TextWindows(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of one text: sample i begins at byte i * context_length, and its targets one byte later."""

    def __init__(self, text: Tensor, context_length: int) -> None:
        """Args:
        text: uint8 of shape [bytes], of two bytes at least.
        context_length: tokens of a sample.
        """
        self.text = text
        self.context_length = context_length

    def __len__(self) -> int:
        return count_windows(len(self.text), self.context_length)

    def to(self, device: torch.device) -> "TextWindows":
        """The same samples with the text on `device`, where `batch` then takes ids and gives its tensors."""
        return TextWindows(self.text.to(device), self.context_length)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets of sample `index`, int64 of shape [context_length] each.

        Raises:
            IndexError: there is no such sample.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        tokens, targets = self.batch(torch.tensor([index], device=self.text.device), seed=0, epoch=0)
        return tokens[0], targets[0]

    def batch(self, ids: Tensor, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """The samples `ids`, int64 of shape [n]; nothing in them is random.

        Returns:
            Tokens and targets, int64 of shape [n, context_length] each. Behind the end of the text the targets are
            `IGNORE_INDEX` and the tokens are the last one again, which no target that counts depends on.
        """
        places = ids[:, None] * self.context_length + torch.arange(self.context_length + 1, device=ids.device)
        windows = self.text[places.clamp(max=len(self.text) - 1)].long()
        targets = windows.masked_fill(places >= len(self.text), IGNORE_INDEX)[:, 1:]
        # contiguous, since only such a tensor is copied to a GPU without waiting
        return windows[:, :-1].contiguous(), targets.contiguous()
