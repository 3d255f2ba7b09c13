"""Callbacks: when their hooks are called, what they may ask for, and that their state survives a resume."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.callbacks.callback import Callback, Control, TrainContext
from paceline.engine.rebuilding import rebuild
from paceline.engine.reporter import MemoryReporter
from paceline.errors import ConfigError, UnusableCode
from paceline.tasks.base import TaskOutput
from support.refusals import refused
from support.toys import PointsTask, built, fit, fit_in_two, net_with_dropout_and_norm, points, toy_config


class Recorder(Callback):
    """Notes every hook; asks for a control at a step or an evaluation."""

    def __init__(self, at_step: tuple[int, str] | None = None, at_evaluation: tuple[int, str] | None = None) -> None:
        self.calls: list[tuple[str, int]] = []
        self.at_step, self.at_evaluation = at_step, at_evaluation

    def setup(self, ctx: TrainContext) -> None:
        self.calls.append(("setup", ctx.step))

    def on_train_start(self, ctx: TrainContext) -> None:
        self.calls.append(("start", ctx.step))

    def on_step_end(self, ctx: TrainContext) -> Control | None:
        self.calls.append(("step", ctx.step))
        ctx.log("mine/samples", ctx.samples)
        return self._asked(self.at_step, ctx)

    def on_evaluation_end(self, ctx: TrainContext, metrics: Mapping[str, float]) -> Control | None:
        self.calls.append(("evaluation", ctx.step))
        assert set(metrics) == {"val/loss", "val/accuracy"}
        return self._asked(self.at_evaluation, ctx)

    def on_epoch_end(self, ctx: TrainContext) -> None:
        self.calls.append(("epoch", ctx.step))

    def on_checkpoint(self, ctx: TrainContext, path: Path) -> None:
        assert (path / "MANIFEST.json").exists()
        self.calls.append(("checkpoint", int(path.name.removeprefix("step-"))))

    def on_train_end(self, ctx: TrainContext) -> None:
        self.calls.append(("end", ctx.step))

    def close(self) -> None:
        self.calls.append(("close", 0))

    def at(self, hook: str) -> list[int]:
        """Steps at which a hook was called."""
        return [step for name, step in self.calls if name == hook]

    def _asked(self, wanted: tuple[int, str] | None, ctx: TrainContext) -> Control | None:
        return Control[wanted[1]] if wanted is not None and ctx.step >= wanted[0] else None


def with_callbacks(*callbacks: Any, **overrides: Any) -> Any:
    return toy_config(
        callbacks=[{"path": each} if isinstance(each, Callback) else each for each in callbacks], **overrides
    )


def test_hooks_are_called_in_the_documented_order(tmp_path: Path) -> None:
    recorder = Recorder()
    _, _, reporter = fit(with_callbacks(recorder), checkpoints=tmp_path)
    assert recorder.calls[:3] == [("setup", 0), ("start", 0), ("step", 1)]
    assert recorder.at("step") == list(range(1, 13))
    assert recorder.at("evaluation") == recorder.at("epoch") == [6, 12]
    at_6 = [hook for hook, step in recorder.calls if step == 6 and hook != "checkpoint"]
    assert at_6 == ["step", "evaluation", "epoch"]
    assert recorder.at("checkpoint") == [6, 12]
    assert recorder.at("end") == [12]
    assert recorder.calls[-2:] == [("checkpoint", 12), ("close", 0)]
    assert reporter.values("mine/samples") == [16.0 * step for step in range(1, 13)]


@pytest.mark.parametrize(
    ("asked", "every", "step", "evaluations"),
    [
        ({"at_step": (4, "STOP")}, 2, 4, 2),
        ({"at_step": (4, "STOP")}, None, 4, 1),  # between two evaluations
        ({"at_evaluation": (6, "STOP")}, 2, 6, 3),
        ({"at_evaluation": (1, "STOP")}, 2, 2, 1),
    ],
)
def test_a_stopped_run_is_finished_evaluated_and_saved(
    asked: dict[str, Any], every: int | None, step: int, evaluations: int, tmp_path: Path
) -> None:
    config = with_callbacks(Recorder(**asked), trainer__evaluate_every_n_steps=every)
    _, outcome, reporter = fit(config, checkpoints=tmp_path)
    assert (outcome.stopped, outcome.step, Path(outcome.checkpoint).name) == (False, step, f"step-{step}")
    assert reporter.points[-1][0] == step
    assert len(reporter.values("val/loss")) == evaluations
    again, later, _ = fit(config, checkpoints=tmp_path)
    assert (later.step, later.weights_sha256) == (step, outcome.weights_sha256)
    assert again.state.task.seen == []


STOPPING = {"name": "early_stopping", "monitor": "val/loss", "patience": 1, "min_delta": 10.0}


@pytest.mark.parametrize(
    ("callback", "reason"),
    [
        (STOPPING, "stopped early after 4 of 12 steps: val/loss not better than "),
        (Recorder(at_step=(4, "STOP")), f"stopped early after 4 of 12 steps by {__name__}.Recorder"),
        (Recorder(at_step=(12, "STOP")), None),
    ],
)
def test_a_run_that_a_callback_stopped_says_why(callback: Any, reason: str | None, tmp_path: Path) -> None:
    config = with_callbacks(callback, trainer__evaluate_every_n_steps=2)
    _, outcome, reporter = fit(config, checkpoints=tmp_path)
    told = [details["text"] for kind, details in reporter.events if kind == "stopped_early"]
    assert told == ([outcome.stopped_early] if reason else [])
    assert (outcome.stopped_early or "").startswith(reason or "")
    assert bool(outcome.stopped_early) == bool(reason)
    assert fit(config, checkpoints=tmp_path)[1].stopped_early == outcome.stopped_early


def test_a_callback_may_ask_for_a_checkpoint(tmp_path: Path) -> None:
    recorder = Recorder(at_step=(1, "SAVE"))
    fit(with_callbacks(recorder, checkpoint__keep=20), checkpoints=tmp_path)
    assert len(list(tmp_path.glob("step-*"))) == 12


class Counting(Callback):
    def __init__(self) -> None:
        self.steps = 0

    def on_step_end(self, ctx: TrainContext) -> None:
        self.steps += 1

    def state_dict(self) -> Mapping[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]


def test_the_state_of_a_callback_object_reaches_another_object_of_its_class(tmp_path: Path) -> None:
    fit(with_callbacks(Counting()), None, tmp_path, MemoryReporter(stop_at_step=4))
    resumed = Counting()
    fit(with_callbacks(resumed), checkpoints=tmp_path)
    assert resumed.steps == 12


def containing_itself() -> list[Any]:
    state: list[Any] = []
    state.append(state)
    return state


@pytest.mark.parametrize(
    "value", [torch.eye(3).to_sparse(), containing_itself(), object()], ids=["sparse", "recursive", "object"]
)
def test_a_state_that_cannot_be_written_is_refused(value: Any, tmp_path: Path) -> None:
    callback = Callback()
    callback.state_dict = lambda: {"value": value}  # type: ignore[method-assign]
    assert refused(UnusableCode, fit, with_callbacks(callback), checkpoints=tmp_path).code == "state-not-saveable"


HOOKS = ["setup", "load_state_dict", "on_train_start", "on_step_end", "on_train_end", "state_dict", "close"]


@pytest.mark.parametrize("hook", HOOKS)
def test_every_callback_is_closed_whichever_hook_raises(hook: str, tmp_path: Path) -> None:
    def fail(*given: Any) -> None:
        raise RuntimeError(hook)

    if hook == "load_state_dict":
        fit(with_callbacks(Recorder(), Callback(), Recorder()), None, tmp_path, MemoryReporter(stop_at_step=2))
    first, faulty, last = Recorder(), Callback(), Recorder()
    setattr(faulty, hook, fail)
    with pytest.raises(RuntimeError, match=hook):
        fit(with_callbacks(first, faulty, last), checkpoints=tmp_path)
    assert first.calls[-1] == ("close", 0)
    assert hook == "setup" or last.calls[-1] == ("close", 0)


def test_an_error_in_close_does_not_hide_the_one_before() -> None:
    class Faulty(Callback):
        def on_step_end(self, ctx: TrainContext) -> None:
            raise RuntimeError("mine")

        def close(self) -> None:
            raise ValueError

    with pytest.raises(RuntimeError, match="mine"):
        fit(with_callbacks(Faulty()))


def test_what_is_no_callback_is_refused() -> None:
    assert refused(UnusableCode, built, with_callbacks({"path": dict})).code == "not-a-callback"
    refusal = refused(ConfigError, with_callbacks, {"name": "early_stoping", "monitor": "val/loss"})
    assert [(each.code, each.key) for each in refusal.problems] == [("unknown-component", "callbacks.0.name")]


EARLY = {"name": "early_stopping", "monitor": "val/loss", "patience": 2, "min_delta": 10.0}


@pytest.mark.parametrize(("interrupted_at", "is_left"), [(4, True), (6, False)])
def test_early_stopping_counts_over_a_resume(interrupted_at: int, is_left: bool, tmp_path: Path) -> None:
    """Nothing improves by 10, so that the run ends at the third evaluation, also if it is to stop there anyway."""
    config = with_callbacks(EARLY, trainer__evaluate_every_n_steps=2)
    assert fit(config)[1].step == 6
    _, first, _ = fit(config, None, tmp_path, MemoryReporter(stop_at_step=interrupted_at))
    assert (first.stopped, first.step) == (is_left, interrupted_at)
    assert fit(config, checkpoints=tmp_path)[1].step == 6


class Weightless(PointsTask):
    """Gives the samples of the validation set no weight."""

    def forward(self, batch: Any) -> TaskOutput:
        output = super().forward(batch)
        return output if self.training else TaskOutput(output.loss_sum, 0)


@pytest.mark.parametrize(
    ("overrides", "metric", "reported", "steps"),
    [
        ({"data__path": lambda: points(validation=0)}, "val/loss", [], 0),
        ({"task__path": Weightless}, "val/loss", [], 2),
        ({}, "val/los", ["val/accuracy", "val/loss"], 2),
    ],
    ids=["no samples", "no weight", "another name"],
)
@pytest.mark.parametrize("monitors", ["callback", "checkpoint"])
def test_a_metric_that_no_evaluation_gives_cannot_be_monitored(
    monitors: str, overrides: dict[str, Any], metric: str, reported: list[str], steps: int, tmp_path: Path
) -> None:
    monitoring = {"checkpoint__monitor": metric} if monitors == "checkpoint" else {}
    callbacks = [{**EARLY, "monitor": metric}] if monitors == "callback" else []
    trainer = built(with_callbacks(*callbacks, **monitoring, **overrides, trainer__evaluate_every_n_steps=2), tmp_path)
    refusal = refused(UnusableCode, trainer.fit)
    assert (refusal.code, refusal.fields["metric"]) == ("no-such-metric", metric)
    assert sorted(refusal.fields["reported"]) == reported
    assert len(trainer.state.task.seen) == steps


@pytest.mark.parametrize(("mode", "values", "bad"), [("min", [1, 2, 0.5, 0.5], 1), ("max", [1, 2, 0.5, 3], 0)])
def test_early_stopping_by_hand(mode: str, values: list[float], bad: int) -> None:
    from paceline.callbacks.early_stopping import EarlyStopping

    callback, ctx = EarlyStopping("m", mode, 3), built(toy_config()).context
    for value in values:
        callback.on_evaluation_end(ctx, {"m": value})
    assert callback.num_bad_evaluations == bad
    callback.on_evaluation_end(ctx, {"m": float("nan")})
    assert callback.num_bad_evaluations == bad + 1


@pytest.mark.parametrize(
    ("chosen", "values"),
    [
        ({"monitor": "val/accuracy"}, [0.1, 0.2, 0.3]),
        ({"monitor": "val/loss"}, [0.3, 0.2, 0.1]),
        ({"monitor": "val/accuracy", "mode": "min"}, [0.3, 0.2, 0.1]),
    ],
)
def test_the_mode_of_early_stopping_follows_the_name_of_the_metric(chosen: dict[str, str], values: list[float]) -> None:
    from paceline.callbacks.early_stopping import EarlyStoppingConfig

    callback = EarlyStoppingConfig.model_validate({"name": "early_stopping", "patience": 1, **chosen}).build()
    ctx = built(toy_config()).context
    controls = [callback.on_evaluation_end(ctx, {chosen["monitor"]: value}) for value in values]
    assert controls == [Control.CONTINUE] * 3


class Watcher(Callback):
    """Keeps the weights of every step, and those that are evaluated."""

    def __init__(self) -> None:
        self.steps: list[torch.Tensor] = []

    def on_step_end(self, ctx: TrainContext) -> None:
        self.steps.append(flat(ctx.model))


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()]).clone()


@pytest.mark.parametrize("warmup", [True, False])
def test_the_average_is_that_of_the_formula(warmup: bool) -> None:
    watcher = Watcher()
    trainer, _, _ = fit(with_callbacks({"name": "ema", "decay": 0.9, "warmup": warmup}, watcher))
    average = flat(built(toy_config()).state.task.model)
    for step, weights in enumerate(watcher.steps):
        decay = min(0.9, (1 + step) / (10 + step)) if warmup else 0.9
        average = decay * average + (1 - decay) * weights
    found = torch.cat([each.flatten() for each in trainer.callbacks[0]._averages.values()])
    assert torch.allclose(found, average, rtol=0, atol=1e-14)


def test_the_average_is_evaluated_and_training_is_unchanged(tmp_path: Path) -> None:
    changes = {"model__path": net_with_dropout_and_norm, "trainer__evaluate_every_n_steps": 2}
    plain = fit(toy_config(**changes), checkpoints=tmp_path / "plain")
    config = with_callbacks({"name": "ema", "decay": 0.9}, **changes)
    averaged = fit(config, checkpoints=tmp_path / "ema")
    assert averaged[1].weights_sha256 == plain[1].weights_sha256
    assert averaged[2].values("val/loss") != plain[2].values("val/loss")
    parts = tmp_path / "parts"
    resumed = fit_in_two(config, parts, 5)
    assert resumed[1].weights_sha256 == averaged[1].weights_sha256
    assert resumed[2].values("val/loss") == averaged[2].values("val/loss")[2:]


def test_a_rebuilt_model_has_the_average(tmp_path: Path) -> None:
    config = with_callbacks({"name": "ema", "decay": 0.9})
    trainer, outcome, _ = fit(config, checkpoints=tmp_path)
    average = torch.cat([each.flatten() for each in trainer.callbacks[0]._averages.values()])
    assert torch.equal(flat(rebuild(config, Path(outcome.checkpoint))), average)
    assert not torch.equal(flat(trainer.state.task.model), average)


def test_learning_rates_are_logged() -> None:
    reporter = fit(with_callbacks({"name": "lr_monitor", "every_n_steps": 3}))[2]
    assert reporter.values("lr/0") == [0.1] * 4


def test_checkpoints_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.callbacks import checkpoint_every_minutes

    clock = iter(range(0, 6000, 30))
    monkeypatch.setattr(checkpoint_every_minutes, "monotonic", lambda: next(clock))
    config = with_callbacks({"name": "checkpoint_every_minutes", "minutes": 2}, checkpoint__keep=20)
    fit(config, checkpoints=tmp_path)
    steps = sorted(int(path.name.removeprefix("step-")) for path in tmp_path.glob("step-*"))
    assert steps == [4, 6, 8, 12]  # 6 and 12 end an epoch


def test_a_run_ends_with_its_time_and_not_anew_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.callbacks import time_limit

    clock = {"now": 0.0}
    monkeypatch.setattr(time_limit, "monotonic", lambda: clock["now"])

    def waiting(seconds: float) -> type[Callback]:
        class Waiting(Callback):
            def on_step_end(self, ctx: TrainContext) -> None:
                clock["now"] += seconds

        return Waiting

    def run(name: str, seconds: float, stop_at_step: int | None = None) -> Any:
        config = with_callbacks({"path": waiting(seconds)}, {"name": "time_limit", "minutes": 1})
        return fit(config, checkpoints=tmp_path / name, reporter=MemoryReporter(stop_at_step=stop_at_step))[1]

    assert run("whole", 20.0).step == 3
    assert run("resumed", 15.0, stop_at_step=2).stopped
    clock["now"] += 1000.0  # between two attempts nothing is trained
    resumed = run("resumed", 15.0)
    assert (resumed.step, resumed.stopped) == (4, False)
    assert "val/loss" in resumed.metrics


@pytest.mark.parametrize("hook", ["on_step_end", "on_evaluation_end", "on_epoch_end"])
@pytest.mark.parametrize("answer", ["stop", True, 7], ids=["text", "bool", "number"])
def test_a_hook_asks_for_a_control_or_for_nothing(hook: str, answer: Any, golden: Any) -> None:
    """`True` would save a checkpoint at each step."""

    class Asking(Callback):
        pass

    def ask(self: Callback, *arguments: Any) -> Any:
        return answer

    ask.__qualname__ = f"Asking.{hook}"
    setattr(Asking, hook, ask)
    refusal = refused(UnusableCode, fit, with_callbacks(Asking()))
    assert refusal.code == "not-a-control"
    assert refusal.fields == {"hook": f"Asking.{hook}", "returned": type(answer).__name__}
    golden(str(refusal))


class Failing:
    """A tensor whose reading shows the error of an earlier operation on the device."""

    def numel(self) -> int:
        return 1

    def __float__(self) -> float:
        raise RuntimeError("device-side assert triggered")


def test_an_error_of_the_device_is_not_taken_for_one_of_the_value() -> None:
    with pytest.raises(RuntimeError, match="device-side"):
        fit(with_callbacks(Logging("mine", Failing())))


class Logging(Callback):
    def __init__(self, name: Any, value: Any) -> None:
        self.name, self.value = name, value

    def on_step_end(self, ctx: TrainContext) -> None:
        ctx.log(self.name, self.value)


@pytest.mark.parametrize("name", ["", "a?", "line\n", "/abs", "../up", "a//b", "a/", "./a", ".", "x" * 251, None])
def test_a_metric_name_that_mlflow_refuses_is_refused_where_it_is_logged(name: Any) -> None:
    assert refused(UnusableCode, fit, with_callbacks(Logging(name, 1.0))).code == "metric-name"


@pytest.mark.parametrize("name", ["a b:c", "mine/sharpness", "x" * 250, "größe", ".hidden"])
def test_a_metric_name_that_mlflow_takes_is_logged(name: str) -> None:
    assert fit(with_callbacks(Logging(name, 1)))[2].values(name) == [1.0] * 12


@pytest.mark.parametrize("value", [None, "one", torch.ones(2), 10**400])
def test_a_logged_value_is_a_number(value: Any) -> None:
    refusal = refused(UnusableCode, fit, with_callbacks(Logging("mine", value)))
    assert (refusal.code, refusal.fields["metric"]) == ("metric-not-a-number", "mine")
