"""Numbers and names that several sections share, and their bounds.

The upper ones of whole numbers lie far beyond what anybody runs: they refuse slips of the pen, and keep the arithmetic
within what torch's and Ray's integers hold.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

LARGEST_BATCH = 2**31 - 1

BatchSize = Annotated[int, Field(ge=1, le=LARGEST_BATCH)]
"""Samples of a batch, 1 to 2^31 - 1."""
Samples = Annotated[int, Field(ge=1, le=LARGEST_BATCH)]
"""Samples of a data set, 1 to 2^31 - 1."""
Epochs = Annotated[int, Field(ge=1, le=10**6)]
"""1 to 10^6."""
Steps = Annotated[int, Field(ge=1, le=10**12)]
"""Optimizer steps, 1 to 10^12."""
Pixels = Annotated[int, Field(ge=1, le=16_384)]
"""Height or width of an image, 1 to 16,384."""
Width = Annotated[int, Field(ge=1, le=10**7)]
"""Inputs or outputs of a layer, 1 to 10^7."""
Channels = Annotated[int, Field(ge=1, le=65_536)]
"""Channels of an image or of a convolution, 1 to 65,536."""
Metric = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,199}$")]
"""Name of a metric as it is recorded, such as `val/accuracy`."""
Target = Annotated[float, Field(ge=-1e20, le=1e20)]
"""Value of a metric that is to be reached, -10^20 to 10^20."""


def _check_regex(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return pattern


Regex = Annotated[str, Field(min_length=1, max_length=10_000), AfterValidator(_check_regex)]
"""A Python regular expression, searched for anywhere in a parameter's name."""
