"""Drawing that may fail without losing the report."""

import logging
import warnings
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from paceline.redaction import redact

logger = logging.getLogger(__name__)
T = TypeVar("T")


def tried(make: Callable[[], T], name: str) -> T | None:
    """Return a result, or None after a warning in the log.

    Args:
        make: draws, or computes what is to be drawn. Values near the largest number may overflow in it.
        name: of the picture.
    """
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # such as of a font that lacks a character
            return make()
    except Exception as error:
        logger.warning("%s could not be drawn: %s", name, redact(f"{type(error).__name__}: {error}"))
        return None
