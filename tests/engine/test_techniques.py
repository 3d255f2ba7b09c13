"""Techniques that change how something is computed, but not what."""

import torch

from paceline.engine.prepare import apply_process_settings
from paceline.engine.state import weights_sha256
from support.toys import toy_config


def test_process_settings() -> None:
    changed = {"float32_matmul_precision": "high", "cudnn_allow_tf32": False, "deterministic": True}
    try:
        apply_process_settings(toy_config(trainer=changed).trainer)
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.allow_tf32
    finally:
        apply_process_settings(toy_config().trainer)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.allow_tf32


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
