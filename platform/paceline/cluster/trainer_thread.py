"""`TorchTrainer.fit()` in a thread of its own, beside the driver's other work."""

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer


class TrainerThread(threading.Thread):
    """`TorchTrainer.fit()` in a thread, which keeps Ray from taking over the signals."""

    def __init__(self, trainer: "TorchTrainer") -> None:
        super().__init__(name="ray-train-fit", daemon=True)
        self.error: BaseException | None = None
        self._trainer = trainer

    def run(self) -> None:
        try:
            self._trainer.fit()
        except (Exception, SystemExit) as error:  # Ray raises SystemExit here when it is shut down
            self.error = error


def first_line(error: BaseException) -> str:
    """What an error says, without the traceback that Ray puts below."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
