"""Activation checkpointing changes what is kept for backward, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import CheckpointPolicy

from paceline._compat.torch import TorchDispatchMode, tree_leaves
from paceline.engine.activation_checkpointing import apply_activation_checkpointing, keep_slow
from paceline.errors import ConfigError
from paceline.models._mlp import MLP
from support.refusals import refused
from support.sentences import tiny_gpt


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.3)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.conv2(self.drop(torch.relu(self.norm(self.conv1(inputs)))))


class Residual(nn.Module):
    """A small ResNet: two stages of blocks with BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stage1 = nn.Sequential(Block(8), Block(8))
        self.stage2 = nn.Sequential(Block(8), Block(8))
        self.head = nn.Linear(8, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.stage2(self.stage1(self.stem(inputs))).mean(dim=(2, 3)))


class InPlace(nn.Module):
    """Activations that write over a block's input, and over a convolution's output."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(self.block() for _ in range(2)))

    def block(self) -> nn.Sequential:
        conv = nn.Conv2d(3, 3, 3, padding=1)
        return nn.Sequential(nn.SiLU(inplace=True), conv, nn.SiLU(inplace=True), nn.BatchNorm2d(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.blocks(inputs * 1.0)


def gpt() -> nn.Module:
    return tiny_gpt(num_layers=4, vocab_size=64, context_length=32, embedding_dim=32)


def flat() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(9) for layer in (nn.Linear(16, 16), nn.Dropout(0.2), nn.GELU())))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "residual": (Residual, lambda: torch.randn(5, 3, 8, 8)),
    "mlp": (lambda: MLP(16, [16] * 9, 4, "gelu"), lambda: torch.randn(8, 16)),
    "thin blocks": (lambda: MLP(16, [16] * 9, 4, "relu"), lambda: torch.randn(8, 16)),
    "flat": (flat, lambda: torch.randn(8, 16)),
    "in place": (InPlace, lambda: torch.randn(2, 3, 8, 8)),
    "gpt": (gpt, lambda: torch.randint(0, 64, (2, 32))),
}


def build(name: str, mode: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model, inputs = (make() for make in MODELS[name])
    model = model.double()
    apply_activation_checkpointing(model, mode)
    return model, inputs.double() if inputs.is_floating_point() else inputs


def trained(name: str, mode: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Gradients and buffers after one backward."""
    model, inputs = build(name, mode)
    torch.manual_seed(1)
    model(inputs).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return gradients, dict(model.named_buffers())


@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_and_buffers_are_those_of_the_plain_model(name: str, mode: str) -> None:
    """BatchNorm counts each batch once, dropout draws the same mask in both passes, names stay."""
    gradients, buffers = trained(name, "none")
    same_gradients, same_buffers = trained(name, mode)
    assert (gradients.keys(), buffers.keys()) == (same_gradients.keys(), same_buffers.keys())
    for key, gradient in gradients.items():
        assert torch.allclose(same_gradients[key], gradient, atol=1e-12, rtol=1e-12), key
    for key, buffer in buffers.items():
        assert torch.equal(same_buffers[key], buffer), key


class Kept(TorchDispatchMode):
    """Follows the memory of all that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return result

    def bytes(self, model: nn.Module) -> int:
        """Computed and still held, without the model's own tensors."""
        own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        return sum(size for key, (alive, size) in self.made.items() if key not in own and not alive.expired())


def kept_bytes(name: str, mode: str) -> int:
    """Memory that lives between forward and backward. `saved_tensors_hooks` do not see what `selective` keeps."""
    model, inputs = build(name, mode)
    with Kept() as kept:
        loss = model(inputs).square().sum()
    assert loss.requires_grad
    return kept.bytes(model)


@pytest.mark.parametrize("name", ["residual", "mlp", "thin blocks", "flat", "gpt"])
def test_less_is_kept(name: str) -> None:
    """Thin blocks, such as a Linear with its ReLU, are taken together: a checkpoint around each would save nothing."""
    none, selective, full = (kept_bytes(name, mode) for mode in ("none", "selective", "full"))
    assert full < 0.6 * none
    assert selective > full
    assert selective < none or name == "thin blocks"  # a ReLU keeps its output alone, which is the next layer's input


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_evaluation_makes_no_checkpoints(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise LookupError

    monkeypatch.setattr("paceline.engine.activation_checkpointing.checkpoint", refuse)
    model, inputs = build("residual", mode)
    with torch.no_grad():
        model(inputs)
    model.eval()(inputs)
    with pytest.raises(LookupError):
        model.train()(inputs)


def test_attention_with_dropout_is_computed_again() -> None:
    """Left out of the second pass, it would not advance the generator. The policy is asked: the kernel is CUDA's."""
    flash, query = torch.ops.aten._scaled_dot_product_flash_attention.default, torch.empty(0)
    assert keep_slow(None, flash, query, query, query, 0.0, True) == CheckpointPolicy.MUST_SAVE
    assert keep_slow(None, flash, query, query, query) == CheckpointPolicy.MUST_SAVE
    assert keep_slow(None, flash, query, query, query, 0.1) == CheckpointPolicy.PREFER_RECOMPUTE
    assert keep_slow(None, flash, query, query, query, dropout_p=0.1) == CheckpointPolicy.PREFER_RECOMPUTE


def nested() -> nn.Module:
    """Blocks in containers that are never called themselves."""
    model = nn.Module()
    named = nn.ModuleDict({"only": Block(3), "norm": nn.BatchNorm2d(3)})
    model.stages = nn.ModuleList([nn.ModuleList([Block(3), Block(3)]), named])
    return model


@pytest.mark.parametrize(
    ("model", "patterns", "blocks"),
    [
        (Residual, None, ["stage1.0", "stage1.1", "stage2.0", "stage2.1"]),
        (nested, None, ["stages.0.0", "stages.0.1", "stages.1.only"]),
        (flat, None, [""]),
        (Residual, ["stage2.*"], ["stage2.0", "stage2.1"]),
        (Residual, ["stem", "stage[1]"], ["stem", "stage1"]),
        (Residual, ["stage1.*", "stage1", "stage1.0.conv*"], ["stage1"]),  # a block inside of a block is part of it
        (gpt, ["blocks*"], [f"blocks.{index}" for index in range(4)]),  # `blocks` is never called
        (gpt, ["blocks.[01].mlp", "blocks.0.attention"], ["blocks.0.attention", "blocks.0.mlp", "blocks.1.mlp"]),
    ],
)
def test_blocks_are_found_or_named_by_patterns(
    model: Callable[[], nn.Module], patterns: list[str] | None, blocks: list[str]
) -> None:
    assert apply_activation_checkpointing(model(), "full", patterns) == blocks


@pytest.mark.parametrize(
    ("model", "patterns", "code"),
    [(Residual, ("stage1", "stage3*"), "unknown-value"), (lambda: nn.Linear(3, 3), (), "no-blocks")],
)
def test_a_model_without_such_blocks_is_refused(
    model: Callable[[], nn.Module], patterns: tuple[str, ...], code: str, golden: Any
) -> None:
    refusal = refused(ConfigError, apply_activation_checkpointing, model(), "full", patterns)
    assert [problem.code for problem in refusal.problems] == [code]
    golden(str(refusal))
