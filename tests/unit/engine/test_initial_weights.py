"""Models that start from the weights of a run or a file."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.rebuilding import evaluated_weights
from paceline.engine.reporter import MemoryReporter
from paceline.engine.state import weights_sha256
from paceline.errors import ConfigError, Problem
from support.golden import Golden
from support.toys import CLASSES, FEATURES, built, fit, net, toy_config


def other_head(classes: int = 5) -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh()), nn.Linear(8, classes))


def convolutions() -> nn.Module:
    """With a bias that batch normalisation subtracts again."""
    layers = [nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(2 * (FEATURES - 2), CLASSES))


def started(weights: Path, reporter: MemoryReporter | None = None, **overrides: Any) -> Any:
    """A trainer whose model has the weights."""
    config = toy_config(**{"model__weights": str(weights), **overrides})
    return build_trainer(config, DistContext.current(), reporter or MemoryReporter(), find_weights=Path)


def values(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: each.clone() for name, each in trainer.state.task.model.state_dict().items()}


def saved(folder: Path, kind: str) -> Path:
    """Float64 weights of the toy's model in a file."""
    torch.manual_seed(5)
    state = net().double().state_dict()
    file = folder / f"own.{'safetensors' if kind == 'safetensors' else 'pt'}"
    if kind == "safetensors":
        save_file(state, file)
    else:
        forms: dict[str, Any] = {
            "plain": state,
            "ddp": {f"module.{name}": each for name, each in state.items()},
            "script": {"epoch": 3, "model": state, "optimizer": {}},
            "lightning": {"state_dict": {f"model.{name}": each for name, each in state.items()}},
        }
        torch.save(forms[kind], file)
    return file


@pytest.mark.parametrize("kind", ["safetensors", "plain", "ddp", "script", "lightning"])
def test_weights_of_a_file_are_loaded_to_the_bit(tmp_path: Path, kind: str) -> None:
    file, reporter = saved(tmp_path, kind), MemoryReporter()
    torch.manual_seed(5)
    state = net().double().state_dict()
    assert weights_sha256(values(started(file, reporter))) == weights_sha256(state)
    told = [details for event, details in reporter.events if event == "initial_weights"]
    assert told == [{"weights": str(file), "path": str(file), "sha256": weights_sha256(state)}]


def test_the_averages_of_a_run_with_ema_are_loaded(tmp_path: Path) -> None:
    ema = [{"name": "ema", "decay": 0.9}]
    _, outcome, _ = fit(toy_config(callbacks=ema), checkpoints=tmp_path)
    checkpoint = tmp_path / f"step-{outcome.step}"
    sha = weights_sha256(values(started(checkpoint)))
    assert sha == weights_sha256(evaluated_weights(checkpoint)) != outcome.weights_sha256


def test_a_resumed_run_does_not_load_them_again(tmp_path: Path) -> None:
    config = toy_config(model__weights="gone")
    own = tmp_path / "own"

    def once(text: str) -> Path:
        assert text == "gone"
        assert not own.exists()
        return saved(tmp_path, "plain")

    for stop_at in (4, None):
        trainer = build_trainer(
            config, DistContext.current(), MemoryReporter(stop_at_step=stop_at), own, find_weights=once
        )
        parts = trainer.fit().weights_sha256
    whole = build_trainer(
        config, DistContext.current(), MemoryReporter(), find_weights=lambda _: saved(tmp_path, "plain")
    )
    assert parts == whole.fit().weights_sha256


def test_skipped_weights_keep_their_fresh_initialisation(tmp_path: Path) -> None:
    file = saved(tmp_path, "safetensors")
    fresh = values(built(toy_config(model={"path": other_head})))
    tuned = values(started(file, model={"path": other_head, "weights": str(file), "weights_skip": r"^1\."}))
    torch.manual_seed(5)
    state = net().double().state_dict()
    for name, each in tuned.items():
        torch.testing.assert_close(each, (fresh if name.startswith("1.") else state)[name], rtol=0, atol=0)


def refusal(weights: Path, **overrides: Any) -> Problem:
    with pytest.raises(ConfigError) as caught:
        started(weights, **overrides)
    (problem,) = caught.value.problems
    return problem


class Deep(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*(nn.Linear(FEATURES, FEATURES) for _ in range(6)))


@pytest.mark.parametrize("model", [other_head, Deep])
def test_weights_of_another_model_are_refused_with_the_differences(tmp_path: Path, model: Any, golden: Golden) -> None:
    file = saved(tmp_path, "plain")
    problem = refusal(file, model={"path": model, "weights": str(file)})
    assert (problem.code, problem.key) == ("weights-mismatch", "model.weights")
    golden(str(problem).replace(str(tmp_path), "<tmp>"))


@pytest.mark.parametrize("pattern", ["^haed", "."])
def test_a_pattern_that_skips_nothing_or_everything_is_refused(tmp_path: Path, pattern: str, golden: Golden) -> None:
    problem = refusal(saved(tmp_path, "plain"), model__weights_skip=pattern)
    assert (problem.code, problem.key) == ("no-such-weights", "model.weights_skip")
    golden(str(problem))


class Payload:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("ran"),)


def changed(change: Any) -> Any:
    return {name: change(each) for name, each in net().state_dict().items()}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bad.pt", {"0.weight": Payload()}),
        ("list.pt", [1]),
        ("meta.pt", changed(lambda each: each.to("meta"))),
        ("sparse.pt", changed(lambda each: each.to_sparse())),
        ("complex.pt", changed(lambda each: each.to(torch.complex128))),
        ("text.safetensors", b"x"),
        *(("other.pt", content) for content in (b"hello", b"abc", b"(", b"", b"PK\x03\x04")),
    ],
)
def test_a_file_that_holds_no_weights_is_refused_and_never_unpickled(
    name: str, content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if isinstance(content, bytes):
        Path(name).write_bytes(content)
    else:
        torch.save(content, name)
    problem = refusal(tmp_path / name)
    assert (problem.code, problem.key) == ("weights-unreadable", "model.weights")
    assert problem.reason.count("cannot be read") == 1
    assert not Path("ran").exists()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)
        self.second.weight = self.first.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.first(inputs) + self.second(inputs)


def test_a_tied_weight_may_be_there_once(tmp_path: Path) -> None:
    state = Tied().double().state_dict()
    del state["second.weight"]
    save_file(state, tmp_path / "tied.safetensors")
    loaded = values(
        started(tmp_path / "tied.safetensors", model={"path": Tied, "weights": str(tmp_path / "tied.safetensors")})
    )
    assert torch.equal(loaded["second.weight"], state["first.weight"])


@pytest.mark.parametrize("removes", [(True, True), (False, True)])
def test_biases_that_are_removed_need_not_be_there(tmp_path: Path, removes: tuple[bool, bool]) -> None:
    before, after = removes
    options: dict[str, Any] = {"model": {"path": convolutions}}
    _, outcome, _ = fit(toy_config(**options, trainer__remove_redundant_bias=before), checkpoints=tmp_path)
    checkpoint = tmp_path / f"step-{outcome.step}"
    model = {"path": convolutions, "weights": str(checkpoint)}
    loaded = values(started(checkpoint, model=model, trainer__remove_redundant_bias=after))
    assert "1.bias" not in loaded
    assert torch.equal(loaded["4.weight"], evaluated_weights(checkpoint)["4.weight"])
