"""Draws a sweep's pictures while its worker groups leave, so that its end need not wait for them."""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.config.experiment import ExperimentConfig
from paceline.redaction import redact
from paceline.sweeps.results.pictures import histories_of, pictures_of, warm_up
from paceline.sweeps.trial import ENDED, Trial

logger = logging.getLogger(__name__)

DRAW_SECONDS = 20.0
"""How long the end of a sweep waits for its pictures; those of ordinary ones take a second or two."""


class Drawing:
    """The pictures of one launch of a sweep. Its threads keep no process from ending."""

    def __init__(self) -> None:
        self._warming: threading.Thread | None = None
        self._drawing: threading.Thread | None = None
        self._pictures: dict[str, bytes] = {}

    def prepare(self, config: ExperimentConfig, trials: Sequence[Trial]) -> None:
        """Import what drawing needs, in the background, once a trial has ended: by then all else is imported."""
        if self._warming is None and any(trial.state in ENDED and trial.attempts for trial in trials):
            self._warming = _begin(lambda: _warm_up(config))

    def start(self, folder: Path, config: ExperimentConfig, trials: Sequence[Trial]) -> None:
        """Begin to draw; nothing is drawn of a sweep of which no trial was trained.

        Args:
            folder: the sweep's own.
        """
        if any(trial.attempts for trial in trials):
            self._drawing = _begin(lambda: self._draw(folder, config, list(trials)))

    def finish(self, timeout_seconds: float = DRAW_SECONDS) -> dict[str, bytes]:
        """The pictures, as PNG by file name; none when they take longer than that."""
        if self._drawing is None:
            return {}
        self._drawing.join(timeout_seconds)
        if self._drawing.is_alive():
            logger.warning("the sweep's pictures take more than %g s, and are left out", timeout_seconds)
            return {}
        return self._pictures

    def _draw(self, folder: Path, config: ExperimentConfig, trials: list[Trial]) -> None:
        if self._warming is not None:
            self._warming.join()  # two threads would find modules half made
        objectives = config.sweep.objectives if config.sweep is not None else []
        self._pictures = pictures_of(config, trials, objectives, histories_of(folder, trials, objectives))


def _begin(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="paceline-pictures", daemon=True)
    thread.start()
    return thread


def _warm_up(config: ExperimentConfig) -> None:
    try:
        warm_up(config)
    except Exception as error:  # drawing tells what it lacks
        logger.debug("nothing can be drawn: %s", redact(str(error)))
