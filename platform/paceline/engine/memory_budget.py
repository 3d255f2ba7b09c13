"""`activation_checkpointing: budget`: the compiler chooses what is kept for backward, within a share of the memory."""

from hashlib import sha256
from pathlib import Path

from torch import Tag, fx
from torch.utils.checkpoint import CheckpointPolicy

from paceline._compat.torch import CustomGraphPass

LEAST = 1e-6
"""The smallest budget. At 0, torch 2.15 computes everything again, even what it was asked to keep."""


class KeepRandom(CustomGraphPass):
    """Keeps what a random operation gave (inductor's seed, for most), instead of drawing again in backward.

    Torch 2.15 chooses random operations to be computed again like any others when there is a budget, and gives wrong
    gradients of a model with dropout.
    """

    def __call__(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            if Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE

    def uuid(self) -> bytes:
        return sha256(Path(__file__).read_bytes()).digest()
