"""Predictions in this process: for whatever model, data and techniques a user brings."""

from collections import UserDict
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from paceline.config import ExperimentConfig
from paceline.config.experiment import validate
from paceline.errors import ConfigError, TrainingError
from paceline.memory.predictor import Prediction, Predictor
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput

FEATURES, CLASSES = 64, 10


class Branching(nn.Sequential):
    """Its way through depends on the numbers."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs if inputs.sum().item() > 0 else -inputs)


def net(width: int = 256) -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU()), nn.Linear(width, CLASSES))


def net_with_rates_from_tensors() -> nn.Module:
    rates = [rate.item() for rate in torch.linspace(0, 0.2, 3)]
    return nn.Sequential(nn.Linear(FEATURES, 32), *(nn.Dropout(rate) for rate in rates), nn.Linear(32, CLASSES))


def data(samples: int = 512) -> Any:
    sets = TensorDataset(torch.ones(samples, FEATURES), torch.zeros(samples, dtype=torch.int64))
    return sets, sets


class Texts(Dataset[Any]):
    """Samples of different lengths, put together by a rule of its own."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(1 + index % 7)

    def collate_fn(self, samples: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        padded = nn.utils.rnn.pad_sequence(samples, batch_first=True)
        return nn.functional.pad(padded, (0, FEATURES - padded.shape[1])), torch.zeros(len(samples), dtype=torch.int64)


def config_of(size: int = 64, **sections: Any) -> ExperimentConfig:
    """A config with a global batch of a size; the sections are the config's, and `workers` the number of ranks."""
    tree = {
        "name": "own",
        "model": {"path": net},
        "data": {"path": data, "global_batch_size": size, **sections.pop("data", {})},
        "scaling": {"num_workers": sections.pop("workers", 0), "use_gpu": False},
    }
    return validate({**tree, **sections})


def predict(*configs: ExperimentConfig, on_cuda: bool = False) -> list[Prediction]:
    found = Predictor(on_cuda).predict(configs)
    assert all(isinstance(each, Prediction) for each in found)
    return found  # type: ignore[return-value]


def convolutions() -> nn.Module:
    layers = (layer for width in (1, 4) for layer in (nn.Conv1d(width, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU()))
    return nn.Sequential(nn.Unflatten(1, (1, FEATURES)), *layers, nn.Flatten(), nn.Linear(4 * FEATURES, CLASSES))


def test_removed_biases_are_not_counted() -> None:
    sections = {"model": {"path": convolutions}, "optimizer": {"name": "sgd", "momentum": 0}}
    kept, removed = predict(*(config_of(trainer={"remove_redundant_bias": on}, **sections) for on in (False, True)))
    assert kept.memory["weights"] - removed.memory["weights"] == 2 * 4 * 4


def test_state_is_counted_by_the_byte() -> None:
    (adamw,) = predict(config_of(optimizer={"name": "adamw"}))
    parameters = FEATURES * 256 + 256 + 256 * CLASSES + CLASSES
    assert adamw.memory["weights"] == 4 * parameters
    # two numbers a weight, and the number of steps of each of the four tensors
    assert adamw.memory["optimizer"] == 8 * parameters + 4 * 4
    assert adamw.peak_memory_bytes == sum(adamw.memory.values())
    (plain,) = predict(config_of(optimizer={"name": "sgd", "momentum": 0}))
    assert plain.memory["optimizer"] == 0


def test_sizes_in_between_are_as_if_they_had_been_traced() -> None:
    configs = [config_of(size) for size in (16, 40, 256)]
    together = [each.peak_memory_bytes for each in predict(*configs)]
    assert together == pytest.approx([predict(config)[0].peak_memory_bytes for config in configs], rel=0.01)


def test_accumulation_keeps_the_gradients() -> None:
    at_once, in_parts = predict(config_of(256), config_of(256, data={"micro_batch_size": 64}))
    assert in_parts.memory["activations"] < at_once.memory["activations"]
    (zeroed,) = predict(config_of(trainer={"zero_grad": "zero"}))
    assert zeroed.memory["gradients"] == zeroed.memory["weights"]


def test_a_model_that_looks_at_numbers_when_it_is_built_needs_no_fallback() -> None:
    predictor = Predictor(on_cuda=False)
    (found,) = predictor.predict([config_of(model={"path": net_with_rates_from_tensors})])
    assert isinstance(found, Prediction)
    assert not predictor.warnings


def test_a_model_that_looks_at_numbers_when_it_runs_is_run_with_a_warning() -> None:
    predictor = Predictor(on_cuda=False)
    branching, sizes = config_of(model={"path": lambda: Branching(*net().children())}), config_of()
    real, fake = predictor.predict([branching, sizes])
    assert isinstance(real, Prediction)
    assert isinstance(fake, Prediction)
    (warning,) = predictor.warnings
    assert "cannot be traced on tensors without data" in warning
    assert real.peak_memory_bytes == pytest.approx(fake.peak_memory_bytes, rel=0.08)
    assert predictor.facts(branching)["parameters"] == predictor.facts(sizes)["parameters"]


def test_batches_of_texts_are_as_long_as_their_rule_makes_them() -> None:
    (found,) = predict(config_of(32, data={"path": lambda: (Texts(), Texts())}))
    assert found.memory["activations"] >= 32 * FEATURES * 4


class Rows(Dataset[Any]):
    """Samples in a mapping that is not a dict, as tokenizers give."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return UserDict(inputs=torch.ones(FEATURES), targets=0)


class ByName(Task):
    def forward(self, batch: Any) -> TaskOutput:
        losses = nn.functional.cross_entropy(self.model(batch["inputs"]), batch["targets"], reduction="sum")
        return TaskOutput(losses, len(batch["targets"]))


def test_batches_in_any_mapping_are_resized() -> None:
    (found,) = predict(config_of(32, data={"path": lambda: (Rows(), Rows())}, task={"path": ByName}))
    assert found.memory["activations"] >= 32 * FEATURES * 4


def test_mistakes_of_the_user_are_told_as_they_are() -> None:
    def broken() -> nn.Module:
        return nn.Linear(FEATURES + 1, CLASSES)

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        predict(config_of(model={"path": broken}))
    with pytest.raises(TrainingError, match="8 training samples make no global batch"):
        predict(config_of(data={"args": {"samples": 8}, "drop_last": True}))


def test_what_does_not_suit_the_model_spoils_nothing_else() -> None:
    def blockless() -> nn.Module:
        return nn.Linear(FEATURES, CLASSES)

    plain = config_of(model={"path": blockless})
    checkpointed = config_of(model={"path": blockless}, trainer={"activation_checkpointing": "full"})
    first, second = Predictor(on_cuda=False).predict([plain, checkpointed])
    assert isinstance(first, Prediction)
    assert isinstance(second, ConfigError)


def test_operations_are_counted_without_what_is_computed_twice() -> None:
    config = config_of(trainer={"activation_checkpointing": "full"})
    predictor = Predictor(on_cuda=False)
    predictor.predict([config])
    facts = predictor.facts(config)
    forward = 2 * (FEATURES * 256 + 256 * CLASSES)
    assert facts["forward_flops_per_sample"] == forward
    # backward: twice that, less the gradient of the inputs, which nobody needs
    assert facts["flops_per_sample"] == 3 * forward - 2 * FEATURES * 256


def test_several_ranks_hold_buckets_beside_the_weights_or_share_the_state() -> None:
    alone, views, copies = predict(
        config_of(), config_of(128, workers=2), config_of(128, workers=2, parallel={"gradient_as_bucket_view": False})
    )
    assert views.memory["gradients"] == alone.memory["weights"]
    assert copies.memory["gradients"] > views.memory["gradients"]
    ddp, fsdp = predict(config_of(256, workers=4), config_of(256, workers=4, parallel={"strategy": "fsdp"}))
    assert fsdp.memory["optimizer"] == ddp.memory["optimizer"] // 4
    assert "fsdp" in fsdp.notes[0]  # it is an estimate
    assert not ddp.notes


def test_a_gpu_holds_the_next_batch_and_says_what_is_left_out() -> None:
    (cpu,), (cuda,) = predict(config_of()), predict(config_of(), on_cuda=True)
    assert cuda.memory["weights"] % 512 == 0
    assert cuda.memory["weights"] >= cpu.memory["weights"]
    assert "CUDA" in cuda.notes[0]
    (half,) = predict(
        config_of(trainer={"precision": "16-mixed"}, scaling={"num_workers": 0, "use_gpu": True}), on_cuda=True
    )
    assert half.memory["activations"] <= cuda.memory["activations"]


@pytest.mark.parametrize(("divisor", "most"), [(8, 1000), (64, 64)])
def test_data_that_come_in_batches_of_certain_sizes(divisor: int, most: int) -> None:
    def collate(samples: Any) -> Any:
        if len(samples) % divisor or len(samples) > most:
            raise ValueError(f"no batch of {len(samples)} samples")
        return torch.utils.data.default_collate(samples)

    def build() -> Any:
        train, validation = data()
        return {"train": train, "validation": validation, "collate_fn": collate}

    predictor = Predictor(on_cuda=False)
    choosy = [config_of(size, data={"path": build}) for size in (64, 16)]
    assert predictor.predict(choosy) == predict(config_of(64), config_of(16))
    assert (
        predictor.facts(choosy[0])["flops_per_sample"] == 2 * 3 * (FEATURES * 256 + 256 * CLASSES) - 2 * FEATURES * 256
    )
