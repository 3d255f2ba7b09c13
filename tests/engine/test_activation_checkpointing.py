"""Activation checkpointing changes what is kept for backward, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

from paceline.engine.activation_checkpointing import apply_activation_checkpointing, keep_slow
from paceline.engine.blocks import find_blocks
from paceline.errors import ConfigError
from paceline.models._gpt import GPT
from paceline.models._mlp import MLP
from paceline.models._torchvision import build_random
from support.toys import fit, toy_config


class Residual(nn.Module):
    """A small ResNet: two stages of blocks with BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stage1 = nn.Sequential(Block(8), Block(8))
        self.stage2 = nn.Sequential(Block(8), Block(8))
        self.head = nn.Linear(8, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.stage2(self.stage1(self.stem(inputs)))
        return self.head(features.mean(dim=(2, 3)))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.3)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.conv2(self.drop(torch.relu(self.norm(self.conv1(inputs)))))


class InPlace(nn.Module):
    """Activations that write over a block's input, and over what a convolution gave."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(self.block() for _ in range(2)))

    def block(self) -> nn.Sequential:
        conv = nn.Conv2d(3, 3, 3, padding=1)
        return nn.Sequential(nn.SiLU(inplace=True), conv, nn.SiLU(inplace=True), nn.BatchNorm2d(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.blocks(inputs * 1.0)


def gpt() -> nn.Module:
    sizes = {"vocab_size": 64, "context_length": 32, "num_layers": 4, "num_heads": 2, "embedding_dim": 32}
    return GPT(**sizes, dropout=0.0, bias=True, tie_embeddings=True)


def flat() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(9) for layer in (nn.Linear(16, 16), nn.Dropout(0.2), nn.GELU())))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "residual": (Residual, lambda: torch.randn(5, 3, 8, 8)),
    "resnet18": (lambda: build_random("resnet18", 10), lambda: torch.randn(4, 3, 32, 32)),
    "mlp": (lambda: MLP(16, [16] * 9, 4, "gelu"), lambda: torch.randn(8, 16)),
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
@pytest.mark.parametrize("name", ["residual", "resnet18", "mlp", "flat", "in place", "gpt"])
def test_gradients_and_buffers_are_those_of_the_plain_model(name: str, mode: str) -> None:
    gradients, buffers = trained(name, "none")
    same_gradients, same_buffers = trained(name, mode)
    assert gradients.keys() == same_gradients.keys()
    for key, gradient in gradients.items():
        assert torch.allclose(same_gradients[key], gradient, atol=1e-12, rtol=1e-12), key
    assert buffers.keys() == same_buffers.keys()
    for key, buffer in buffers.items():
        assert torch.equal(same_buffers[key], buffer), key


def test_checkpoint_twice_would_be_seen() -> None:
    """The planted bug: torch's own checkpoint updates BatchNorm's statistics twice."""
    torch.manual_seed(0)
    block, inputs = Block(8).double(), torch.randn(5, 8, 4, 4, dtype=torch.float64, requires_grad=True)
    checkpoint(block, inputs, use_reentrant=False).sum().backward()
    assert int(block.norm.num_batches_tracked) == 2


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
        """Of what was computed and is still there, without the model's own tensors."""
        own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        return sum(size for key, (alive, size) in self.made.items() if key not in own and not alive.expired())


def kept_bytes(name: str, mode: str) -> int:
    """What lives between forward and backward. `saved_tensors_hooks` do not see what `selective` keeps."""
    model, inputs = build(name, mode)
    with Kept() as kept:
        loss = model(inputs).square().sum()
    assert loss.requires_grad
    return kept.bytes(model)


@pytest.mark.parametrize("name", ["resnet18", "mlp", "flat", "gpt"])
def test_less_is_kept(name: str) -> None:
    none, selective, full = (kept_bytes(name, mode) for mode in ("none", "selective", "full"))
    assert none > selective > full
    assert full < 0.6 * none


def hooked_bytes(model: nn.Module, inputs: Tensor) -> int:
    """Memory of the tensors that autograd saves for backward, without the parameters'."""
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            sizes[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(inputs).square().sum()
    assert loss.requires_grad
    return sum(sizes.values())


class EachLinear(nn.Module):
    """The tutorial's model: `checkpoint(layer, x, use_reentrant=False)` on each Linear, with ReLU between."""

    def __init__(self, checkpoints: bool) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            out = checkpoint(layer, inputs, use_reentrant=False) if self.checkpoints else layer(inputs)
            inputs = torch.relu(out)
        return inputs


def test_a_checkpoint_on_each_linear_saves_nothing() -> None:
    """A Linear keeps its input for backward, and so does a checkpoint around it.

    What comes out of the Linear is kept by neither: ReLU keeps its own result, which is the next Linear's input. So
    both arms keep the same tensors, and a difference that is measured between them comes from something else, such as
    the first arm's tensors that are still alive while the second is measured.
    """
    inputs = torch.randn(8, 16)
    assert hooked_bytes(EachLinear(True), inputs) == hooked_bytes(EachLinear(False), inputs)


def test_thin_blocks_are_taken_together() -> None:
    """Around each Linear with its ReLU a checkpoint would save nothing, for the same reason."""
    mlp, inputs = MLP(16, [16] * 9, 4, "relu"), torch.randn(8, 16)
    plain = hooked_bytes(mlp, inputs)
    assert apply_activation_checkpointing(mlp, "full") == ["blocks"]
    assert hooked_bytes(mlp, inputs) < 0.6 * plain


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_evaluation_makes_no_checkpoints(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a checkpoint was made")

    monkeypatch.setattr("paceline.engine.activation_checkpointing.checkpoint", refuse)
    model, inputs = build("residual", mode)
    with torch.no_grad():
        model(inputs)
    model.eval()(inputs)
    with pytest.raises(AssertionError, match="was made"):
        model.train()(inputs)


def test_attention_with_dropout_is_computed_again() -> None:
    """Left out of the second pass, it would not advance the generator, and later dropout would draw other numbers.

    The policy is asked, since the kernel is CUDA's.
    """
    flash, query = torch.ops.aten._scaled_dot_product_flash_attention.default, torch.empty(0)
    assert keep_slow(None, flash, query, query, query, 0.0, True) == CheckpointPolicy.MUST_SAVE
    assert keep_slow(None, flash, query, query, query) == CheckpointPolicy.MUST_SAVE
    assert keep_slow(None, flash, query, query, query, 0.1) == CheckpointPolicy.PREFER_RECOMPUTE
    assert keep_slow(None, flash, query, query, query, dropout_p=0.1) == CheckpointPolicy.PREFER_RECOMPUTE


# Which blocks


def test_blocks_are_found() -> None:
    assert [name for name, _ in find_blocks(Residual())] == ["stage1.0", "stage1.1", "stage2.0", "stage2.1"]
    assert [name for name, _ in find_blocks(nn.Sequential(Block(3), Block(3)))] == ["0", "1"]
    assert [name for name, _ in find_blocks(flat())] == [""]


class Nested(nn.Module):
    """Blocks in containers that are never called themselves."""

    def __init__(self) -> None:
        super().__init__()
        stages = (nn.ModuleList([Block(3), Block(3)]), nn.ModuleDict({"only": Block(3), "norm": nn.BatchNorm2d(3)}))
        self.stages = nn.ModuleList(stages)

    def forward(self, inputs: Tensor) -> Tensor:
        for block in (*self.stages[0], self.stages[1]["only"]):
            inputs = block(inputs)
        return self.stages[1]["norm"](inputs)


def test_containers_that_are_never_called_are_no_blocks() -> None:
    model, inputs = Nested(), torch.randn(2, 3, 8, 8)
    assert [name for name, _ in find_blocks(model)] == ["stages.0.0", "stages.0.1", "stages.1.only"]
    plain = hooked_bytes(model, inputs)
    apply_activation_checkpointing(model, "full")
    assert hooked_bytes(model, inputs) < plain


def applied(model: nn.Module, *patterns: str) -> list[str]:
    return apply_activation_checkpointing(model, "full", patterns)


def test_blocks_are_named_by_patterns() -> None:
    assert applied(Residual(), "stage2.*") == ["stage2.0", "stage2.1"]
    assert applied(Residual(), "stem", "stage[1]") == ["stem", "stage1"]
    assert applied(gpt(), "blocks.*.mlp", "blocks.0.attention") == [
        "blocks.0.attention",
        *(f"blocks.{index}.mlp" for index in range(4)),
    ]


def test_a_block_within_a_block_is_not_checkpointed_again() -> None:
    assert applied(Residual(), "stage1.*", "stage1", "stage1.0.conv*") == ["stage1"]


def test_a_container_that_is_never_called_is_no_block() -> None:
    assert applied(gpt(), "blocks*") == [f"blocks.{index}" for index in range(4)]


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"blocks: no module .* matches 'stage3\*'.*there are: stem, stage1, "):
        applied(Residual(), "stage1", "stage3*")


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Linear has no blocks .*\(name its large modules in"):
        apply_activation_checkpointing(nn.Linear(3, 3), "full")


def test_names_in_the_state_dict_stay() -> None:
    plain, wrapped = Residual(), Residual()
    apply_activation_checkpointing(wrapped, "full")
    assert plain.state_dict().keys() == wrapped.state_dict().keys()


@pytest.mark.parametrize(
    "changes", [{}, {"trainer__activation_checkpointing_blocks": ["0.1", "1"]}], ids=["found", "named"]
)
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_checkpointed_training_equals_plain_training(mode: str, changes: dict[str, Any]) -> None:
    plain, checkpointed = (
        fit(toy_config(trainer__activation_checkpointing=mode, **changes))[2].values("train/loss")
        for mode in ("none", mode)
    )
    assert checkpointed == pytest.approx(plain, abs=1e-13)
