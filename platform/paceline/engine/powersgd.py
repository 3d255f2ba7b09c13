"""PowerSGD (Vogels et al. 2019, arXiv:1905.13727, algorithm 2): gradients exchanged as products of thin matrices.

The same numbers as torch's `powerSGD_hook` with error feedback and warm start; another bookkeeping. torch keeps its
memory by bucket, and DDP builds its buckets again after the first step of each process, so that what was saved fits no
bucket of the resumed run. Here the memory belongs to the parameters. Besides, no step waits for the device, torch's
global generators are not touched, and a gradient that is zero changes nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # re-exported, though not by name

from paceline.engine.dist_context import DistContext
from paceline.engine.order import mix

LEAST_SAVING = 2
"""A matrix is compressed where that makes it smaller by more than this factor, as in torch."""


class _Matrix(NamedTuple):
    """A gradient to be compressed."""

    number: int
    gradient: Tensor
    """In the bucket: any shape."""
    content: Tensor
    """A copy as [rows, columns], with the error of the steps before added."""


class PowerSGD:
    """Averages a bucket M of each rank as P Q^T, with P and Q of `rank` columns; call it with each bucket.

    Each rank keeps what its own M lost and adds it to the next one (error feedback). Q starts random, equal on all
    ranks, and then from the one before (warm start). Vectors and small matrices are averaged as they are.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        rank: int,
        start_step: int,
        ranks: DistContext,
        seed: int,
        warn: Callable[[str], None],
    ) -> None:
        """Args:
        warn: called on rank 0 with a message.
        """
        self._warn = warn
        self.step = 0
        """Optimizer steps that have been exchanged."""
        self._numbers: dict[Tensor, int] = {parameter: number for number, parameter in enumerate(parameters)}
        self._rank = rank
        self._start_step = start_step
        self._ranks = ranks
        self._seed = seed
        self._errors: dict[int, Tensor] = {}
        """By the parameter's number: [rows, columns], this rank's own."""
        self._qs: dict[int, Tensor] = {}
        """By the parameter's number: [columns, rank], equal on all ranks."""
        is_cuda = ranks.device.type == "cuda"
        self._stream = torch.cuda.Stream(ranks.device) if is_cuda else None  # type: ignore[no-untyped-call]

    def __call__(self, bucket: GradBucket) -> "torch.futures.Future[Tensor]":
        """Average a bucket in place. Every rank must call it with its own one."""
        if self._stream is None:
            self._average(bucket)
            return _done(bucket.buffer())
        # on a stream of its own, so that backward continues meanwhile; DDP waits for the future
        self._stream.wait_stream(torch.cuda.current_stream(self._ranks.device))
        with torch.cuda.stream(self._stream):
            self._average(bucket)
            return _done(bucket.buffer(), self._ranks.device)

    def state_dict(self) -> dict[str, Any]:
        """The memory of all ranks, whole on rank 0: CPU copies, since they are written while training continues."""
        qs = {str(number): q.to("cpu", copy=True) for number, q in self._qs.items()}
        errors = {str(number): self._gathered(self._errors[number]) for number in sorted(self._errors)}
        return {"step": self.step, "qs": qs, "errors": errors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the saved memory, or start it again where it does not fit."""
        self.step = state["step"]
        if not state["qs"]:
            return
        reason = self._mismatch(state)
        if reason is not None:
            self._warn(f"the memory of comm_hook powersgd starts empty: {reason}")
            return
        device, rank = self._ranks.device, self._ranks.rank
        self._qs = {int(number): q.to(device, copy=True) for number, q in state["qs"].items()}
        self._errors = {int(number): each[rank].to(device, copy=True) for number, each in state["errors"].items()}

    def _mismatch(self, state: Mapping[str, Any]) -> str | None:
        saved_ranks = len(next(iter(state["errors"].values())))
        if saved_ranks != self._ranks.world_size:
            return f"it was saved by {saved_ranks} workers, and there are {self._ranks.world_size}"
        shapes = {str(number): (m, r) for number, (_, m, r) in self._compressible().items()}
        if {number: tuple(q.shape) for number, q in state["qs"].items()} != shapes:
            return "parallel.powersgd_rank, or what is trained, has changed"
        return None

    def _average(self, bucket: GradBucket) -> None:
        if self.step < self._start_step:
            dist.all_reduce(bucket.buffer().div_(self._ranks.world_size))
        else:
            self._compress(bucket)
        self.step += bucket.is_last()

    def _compress(self, bucket: GradBucket) -> None:
        whole: list[Tensor] = []
        matrices: list[_Matrix] = []
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            number = self._numbers[parameter]
            if thin_shape(gradient, self._rank) is None:
                whole.append(gradient)
            else:
                matrices.append(_Matrix(number, gradient, self._with_error(number, gradient)))
        qs = [orthonormal_columns(self._q(matrix.number, matrix.content)) for matrix in matrices]
        ps = [matrix.content @ q for matrix, q in zip(matrices, qs, strict=True)]
        self._mean_together([*whole, *ps])
        ps = [orthonormal_columns(p) for p in ps]
        for matrix, p, q in zip(matrices, ps, qs, strict=True):
            torch.mm(matrix.content.t(), p, out=q)
        self._mean_together(qs)
        for matrix, p, q in zip(matrices, ps, qs, strict=True):
            approximation = p @ q.t()
            # in place: memory that is used on another stream must not be released
            torch.sub(matrix.content, approximation, out=self._errors[matrix.number])
            self._qs[matrix.number].copy_(q)
            matrix.gradient.copy_(approximation.view_as(matrix.gradient))

    def _with_error(self, number: int, gradient: Tensor) -> Tensor:
        matrix = gradient.reshape(len(gradient), -1)
        if number not in self._errors:
            self._errors[number] = torch.zeros_like(matrix)
        return matrix + self._errors[number]

    def _q(self, number: int, matrix: Tensor) -> Tensor:
        if number not in self._qs:
            generator = torch.Generator().manual_seed(mix(self._seed, number))
            random = torch.randn(matrix.shape[1], min(*matrix.shape, self._rank), generator=generator)
            self._qs[number] = random.to(matrix)
        return self._qs[number]

    def _mean_together(self, tensors: list[Tensor]) -> None:
        """The mean of each tensor over the ranks, in place, in one exchange."""
        if not tensors:
            return
        together = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(together)
        together.div_(self._ranks.world_size)
        means = torch.split(together, [tensor.numel() for tensor in tensors])
        for tensor, mean in zip(tensors, means, strict=True):
            tensor.copy_(mean.view_as(tensor))

    def _compressible(self) -> dict[int, tuple[int, int, int]]:
        shapes = {number: thin_shape(parameter, self._rank) for parameter, number in self._numbers.items()}
        return {number: shape for number, shape in shapes.items() if shape is not None}

    def _gathered(self, tensor: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self._ranks.world_size)] if self._ranks.is_first else None
        dist.gather(tensor, parts, dst=0)
        return [part.cpu() for part in parts or ()]


def thin_shape(tensor: Tensor, rank: int) -> tuple[int, int, int] | None:
    """Rows, columns and width of the thin matrices of a gradient; None where they would save too little.

    Tensors of more than two dimensions are cut after the first one.
    """
    if tensor.ndim < 2 or not tensor.numel():
        return None
    rows, columns = len(tensor), tensor.numel() // len(tensor)
    width = min(rows, columns, rank)
    return (rows, columns, width) if (rows + columns) * width * LEAST_SAVING < rows * columns else None


def orthonormal_columns(matrix: Tensor) -> Tensor:
    """Orthonormal columns that span those of `matrix` [rows, columns]; any that do where it lacks rank.

    So a gradient that is zero once does not stay zero for ever, and divides nothing by zero.
    """
    if matrix.shape[1] > 1:
        columns: Tensor = torch.linalg.qr(matrix).Q
        return columns
    norm = torch.linalg.vector_norm(matrix)
    return torch.where(norm > 0, matrix / norm, len(matrix) ** -0.5)


def _done(value: Tensor, *devices: torch.device) -> "torch.futures.Future[Tensor]":
    future: torch.futures.Future[Tensor] = torch.futures.Future(devices=list(devices))
    future.set_result(value)
    return future
