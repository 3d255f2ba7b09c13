"""Techniques that change how something is computed, but not what."""

import pytest
import torch
from torch import nn

from paceline.engine.activation_checkpointing import apply_activation_checkpointing, find_blocks
from paceline.engine.prepare import apply_process_settings
from paceline.engine.state import weights_sha256
from support.toys import fit, toy_config


class Residual(nn.Module):
    """A small ResNet: two stages of blocks with BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stage1 = nn.Sequential(Block(8), Block(8))
        self.stage2 = nn.Sequential(Block(8), Block(8))
        self.head = nn.Linear(8, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features = self.stage2(self.stage1(self.stem(inputs)))
        return self.head(features.mean(dim=(2, 3)))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.3)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.conv2(self.drop(torch.relu(self.norm(self.conv1(inputs)))))


def gradients_and_buffers(mode: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], int]:
    torch.manual_seed(0)
    model = Residual().double()
    apply_activation_checkpointing(model, mode)
    inputs = torch.randn(5, 3, 8, 8, dtype=torch.float64)
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(inputs).square().sum()
    saved = sum(kept)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return gradients, dict(model.named_buffers()), saved


def test_activation_checkpointing_changes_memory_and_nothing_else() -> None:
    gradients, buffers, saved = gradients_and_buffers("none")
    same_gradients, same_buffers, saved_less = gradients_and_buffers("full")
    assert gradients.keys() == same_gradients.keys()
    for name, gradient in gradients.items():
        assert torch.allclose(same_gradients[name], gradient, atol=1e-12, rtol=0), name
    assert buffers.keys() == same_buffers.keys()
    for name, buffer in buffers.items():
        assert torch.equal(same_buffers[name], buffer), name
    assert saved_less < saved / 3


def test_checkpoint_twice_would_be_seen() -> None:
    """The planted bug: torch's own checkpoint updates BatchNorm's statistics twice."""
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    block, inputs = Block(8).double(), torch.randn(5, 8, 4, 4, dtype=torch.float64, requires_grad=True)
    checkpoint(block, inputs, use_reentrant=False).sum().backward()
    assert int(block.norm.num_batches_tracked) == 2


def test_blocks_are_found() -> None:
    assert [name for name, _ in find_blocks(Residual())] == ["stage1.0", "stage1.1", "stage2.0", "stage2.1"]


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="no blocks"):
        apply_activation_checkpointing(nn.Linear(3, 3), "full")


def test_names_in_the_state_dict_stay() -> None:
    plain, wrapped = Residual(), Residual()
    apply_activation_checkpointing(wrapped, "full")
    assert plain.state_dict().keys() == wrapped.state_dict().keys()


def test_checkpointed_training_equals_plain_training() -> None:
    plain, checkpointed = (
        fit(toy_config(trainer__activation_checkpointing=mode))[2].values("train/loss") for mode in ("none", "full")
    )
    assert checkpointed == pytest.approx(plain, abs=1e-13)


def test_process_settings() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        apply_process_settings(
            toy_config(trainer__float32_matmul_precision="high", trainer__deterministic=True).trainer
        )
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_float32_matmul_precision(before)
        torch.use_deterministic_algorithms(False)


def test_weights_hash_sees_names_shapes_and_bits_but_no_wrapper() -> None:
    torch.manual_seed(0)
    state = {"a.weight": torch.randn(2, 3), "b.bias": torch.randn(4)}
    digest = weights_sha256(state)
    assert weights_sha256(dict(reversed(state.items()))) == digest
    assert weights_sha256({f"module._orig_mod.{name}": tensor for name, tensor in state.items()}) == digest
    assert weights_sha256({**state, "a.weight": state["a.weight"].reshape(3, 2)}) != digest
    assert weights_sha256({"a.weight": state["a.weight"], "c.bias": state["b.bias"]}) != digest
    changed = state["b.bias"].clone()
    changed.view(torch.int32)[0] ^= 1
    assert weights_sha256({**state, "b.bias": changed}) != digest
