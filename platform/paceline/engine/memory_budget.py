"""`activation_checkpointing: budget`: the compiler chooses what is kept for backward, within a share of the memory."""

from torch import Tag, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy

LEAST = 1e-6
"""The smallest budget. At 0, torch 2.15 computes everything again, even what it was told to keep."""


class KeepRandom(CustomGraphPass):
    """Keeps what a random operation gave (inductor's seed, for most), instead of drawing anew in backward.

    Torch 2.15 chooses random operations to be computed again like any others when there is a budget, and gives wrong
    gradients of a model with dropout.
    """

    def __call__(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            if isinstance(node.target, OpOverload) and Tag.nondeterministic_seeded in node.target.tags:
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))
