"""A text, byte by byte, cut into windows of equal length."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from paceline.config.data import Sizes
from paceline.data._text import count_windows, file_size, python_manual, read_text
from paceline.data.base import DataConfig
from paceline.errors import EnvironmentFault

if TYPE_CHECKING:
    from torch.utils.data import Dataset

_SHORTEST = 2
"""Bytes of the shortest text that there is something to learn from: one to see, and one to predict from it."""


class TextFileConfig(DataConfig):
    """For `task: {name: language_modeling}`: a token is a byte, 0 to 255, and a sample is `context_length` of them.

    A sample's targets are the bytes that follow each of its own. Samples don't overlap, so each byte but the first is
    predicted once. The last sample of a set may be shorter: the targets behind its end don't count.
    """

    is_in_memory: ClassVar[bool] = True

    name: Literal["text_file"]
    """Selects this data set."""
    file: Annotated[str, Field(min_length=1)] | None = None
    """The text, in any encoding; relative to the working folder. `null`: the reference manual that Python's `help()`
    shows, about 400 kB of English. It is installed with Python and differs from one version of Python to the next,
    so losses compare within one version only; name a file where that matters."""
    context_length: Annotated[int, Field(ge=1, le=2**20)] = 128
    """Tokens of a sample, 1 to 2^20. At most the model's."""
    validation_fraction: Annotated[float, Field(ge=1e-6, le=0.999)] = 0.1
    """Share of the text, at its end, that is kept for validation, 10^-6 to 0.999."""

    def sizes(self) -> Sizes | None:
        """As follows from the number of bytes; None where the file is not there.

        Raises:
            EnvironmentFault: the text is too short.
        """
        size = len(python_manual()) if self.file is None else file_size(Path(self.file))
        if size is None:
            return None
        training = self._training_bytes(size)
        return Sizes(*(count_windows(part, self.context_length) for part in (training, size - training)))

    def places(self) -> list[str]:
        """The text, where it is not Python's own."""
        return [] if self.file is None else [self.file]

    def build(self) -> "tuple[Dataset[Any], Dataset[Any]]":
        """The training and validation sets: tokens and targets, int64 of shape [context_length] each.

        The text is held in memory, a byte a token.

        Raises:
            EnvironmentFault: the file cannot be read, or the text is too short.
        """
        from paceline.data._text_file import TextWindows, as_tensor

        text = as_tensor(python_manual() if self.file is None else read_text(Path(self.file)))
        training = self._training_bytes(len(text))
        return TextWindows(text[:training], self.context_length), TextWindows(text[training:], self.context_length)

    def _training_bytes(self, size: int) -> int:
        validation = round(size * self.validation_fraction)
        if min(size - validation, validation) < _SHORTEST:
            place = "" if self.file is None else f"{Path(self.file).absolute()}: "
            raise EnvironmentFault(
                f"data text_file: {place}a text of {size:,} bytes and a data.validation_fraction of "
                f"{self.validation_fraction:g} leave {size - validation:,} for training and {validation:,} for "
                f"validation; at least {_SHORTEST} are needed for each",
                "text-too-short",
                size_bytes=size,
            )
        return size - validation
