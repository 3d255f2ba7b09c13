"""Each rule finds the fault that was planted, at its place, and nothing else; in the repaired twin it finds nothing."""

import re
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paceline.study.lint import lint
from paceline.study.lint.rules import RULES
from study.lint import plants
from study.lint.plants import WIDTH, net

HERE = r"plants\.py:\d+$"
LINEAR = {"extra": lambda: nn.Linear(WIDTH, WIDTH)}
BF16 = {"trainer__precision": "bf16-mixed"}
LONG = {"trainer__max_steps": 1000}
LARGE = {"data__global_batch_size": 1024, "optimizer__base_batch_size": 64}


class Case(NamedTuple):
    """A fault."""

    rule: str
    place: str
    """Pattern of the finding's place."""
    faulty: dict[str, Any]
    repaired: dict[str, Any]
    severity: str = "warning"


def model(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Arguments of `config` for a net with these."""
    return {"model": net(*arguments, **options)}


def task(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Arguments of `config` for a task with these."""
    return {"task": plants.task_with(*arguments, **options)}


def softmax(dim: int) -> Any:
    return lambda net, x: F.softmax(x, dim=dim)


CASES = [
    Case("bias-before-norm", r"model\.0", {"model": plants.conv_norm(True)}, {"model": plants.conv_norm(False)}),
    Case(
        "linear-bias-before-norm",
        r"model\.1",
        {"model": plants.linear_norm(True)},
        {"model": plants.linear_norm(False)},
    ),
    Case(
        "batchnorm-on-single-samples",
        r"model\.2",
        {"model": plants.linear_norm(False), "data__num_samples": 33},
        {"model": plants.linear_norm(False), "data__num_samples": 33, "data__drop_last": True},
        "error",
    ),
    Case(
        "batchnorm-on-small-batches",
        r"model\.1",
        {"model": plants.conv_norm(False), "data__global_batch_size": 4},
        {"model": plants.conv_norm(False), "data__global_batch_size": 8},
    ),
    Case(
        "softmax-before-cross-entropy",
        "model",
        model(end=lambda net, x: net.extra(x), extra=lambda: nn.Softmax(dim=1)),
        model(end=lambda net, x: x * F.softmax(x, dim=1)),
        "error",
    ),
    Case("softmax-before-cross-entropy", r"test_rules\.py:\d+$", model(end=softmax(1)), model(), "error"),
    Case(
        "softmax-before-cross-entropy",
        r"test_rules\.py:\d+$",
        model(end=lambda net, x: x.log_softmax(1).unsqueeze(0).squeeze(0)),
        model(),
    ),
    Case(
        "sigmoid-before-bce-with-logits",
        r"test_rules\.py",
        task(plants.binary(lambda x: torch.sigmoid(x))),
        task(plants.binary(lambda x: x)),
        "error",
    ),
    Case(
        "nll-of-probabilities",
        HERE,
        task(plants.likelihood(F.softmax)),
        task(plants.likelihood(F.log_softmax)),
        "error",
    ),
    Case(
        "double-softmax",
        r"test_rules\.py:\d+$",
        model(lambda net, x: F.softmax(F.softmax(x, dim=1), dim=1)),
        model(softmax(1)),
        "error",
    ),
    Case(
        "relu-before-cross-entropy",
        r"test_rules\.py",
        model(end=lambda net, x: F.relu(x)),
        model(lambda net, x: F.relu(x)),
        "error",
    ),
    Case("loss-is-a-mean", HERE, task(plants.averaged), task(plants.summed), "error"),
    Case("loss-without-gradient", "task", model(end=lambda net, x: x.detach()), model(), "error"),
    Case("in-place-breaks-backward", "model", model(plants.in_place(False)), model(plants.in_place(True)), "error"),
    Case(
        "graphs-are-kept",
        r"Changed\.losses",
        task(plants.kept(False), losses=list),
        task(plants.kept(True), losses=list),
        "error",
    ),
    Case(
        "graphs-are-kept",
        r"Changed\.losses",
        task(plants.kept(False), losses=plants.queue),
        task(plants.kept(True), losses=plants.queue),
        "error",
    ),
    Case("waits-for-the-device", HERE, model(plants.clipped), model(lambda net, x: x.clamp(-100, 100))),
    Case(
        "waits-for-the-device",
        r"test_rules\.py",
        model(lambda net, x: x / float(x.max())),
        model(plants.dropped_layer, extra=lambda: nn.Linear(WIDTH, WIDTH).requires_grad_(False)),
    ),
    Case("waits-for-the-device", r"test_rules\.py", model(lambda net, x: x * x.mean().item()), model()),
    Case("waits-for-the-device", r"test_rules\.py", model(lambda net, x: x + x.cpu()), model()),
    Case("tensor-is-printed", HERE, model(plants.printed), model(plants.printed_shape)),
    Case("numpy-in-forward", HERE, model(plants.by_numpy), model(lambda net, x: x + torch.tanh(x))),
    Case("device-is-named", HERE, model(plants.to_cuda), model(lambda net, x: x.to(net.head.weight.device))),
    Case(
        "made-in-host-memory",
        r"test_rules\.py",
        model(lambda net, x: x + torch.arange(WIDTH)),
        model(lambda net, x: x + torch.arange(WIDTH, device=x.device) + torch.tensor(0.5)),
    ),
    Case(
        "made-in-host-memory",
        r"test_rules\.py",
        model(lambda net, x: x + torch.zeros(WIDTH).to(x.device)),
        model(lambda net, x: x + torch.zeros_like(x)),
    ),
    Case("cache-or-synchronize-in-forward", HERE, model(plants.synchronized), model()),
    Case("cache-or-synchronize-in-forward", HERE, model(plants.emptied), model()),
    Case(
        "loop-over-the-batch",
        HERE,
        model(plants.row_by_row, **LINEAR),
        model(plants.layer_by_layer, extra=lambda: nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.ReLU()])),
    ),
    Case("backward-in-forward", HERE, task(plants.own_backward), task(plants.summed), "error"),
    Case(
        "graph-is-retained",
        HERE,
        model(end=plants.penalised(retain_graph=True)),
        model(end=plants.penalised(create_graph=True)),
    ),
    Case("own-autocast", HERE, model(plants.in_float16(True)), model(plants.in_float16(False)), "error"),
    Case("own-autocast", HERE, model(plants.in_float16(True, torch.bfloat16)), model()),
    Case(
        "own-grad-scaler", r"Changed\.scaler", task(plants.summed, scaler=plants.scaler), task(plants.summed), "error"
    ),
    Case(
        "parallel-wrapper",
        "model",
        {"model": lambda: nn.DataParallel(plants.Net())},
        {"model": plants.Net},
        "error",
    ),
    Case(
        "not-registered",
        r"Net\.extra",
        model(lambda net, x: net.extra[0](x), extra=lambda: [nn.Linear(WIDTH, WIDTH)]),
        model(lambda net, x: net.extra[0](x), extra=lambda: nn.ModuleList([nn.Linear(WIDTH, WIDTH)])),
        "error",
    ),
    Case(
        "not-registered",
        r"Net\.extra",
        model(lambda net, x: x * net.extra, extra=lambda: torch.ones(WIDTH, requires_grad=True)),
        model(lambda net, x: x * net.extra, extra=lambda: nn.Parameter(torch.ones(WIDTH))),
        "error",
    ),
    Case(
        "tensor-not-registered",
        r"Positions\.values",
        model(lambda net, x: net.extra(x), extra=lambda: plants.Positions(False)),
        model(lambda net, x: net.extra(x), extra=lambda: plants.Positions(True)),
    ),
    Case("made-in-forward", HERE, model(plants.new_layer), model(lambda net, x: net.extra(x), **LINEAR), "error"),
    Case(
        "never-used",
        r"model\.extra\.weight",
        model(plants.unused, **LINEAR),
        model(lambda net, x: net.extra(x), **LINEAR),
    ),
    Case(
        "never-used",
        r"model\.extra\.weight",
        {**model(plants.unused, **LINEAR), "scaling__num_workers": 2},
        {**model(plants.unused), "scaling__num_workers": 2},
        "error",
    ),
    Case(
        "weights-in-16-bit",
        r"model\.extra\.weight",
        {"model": plants.in_format(torch.bfloat16)},
        {"model": plants.in_format(torch.float32)},
    ),
    Case("eval-is-undone", r"model\.1", {"model": plants.frozen_norm(False)}, {"model": plants.frozen_norm(True)}),
    Case(
        "training-mode-in-evaluation",
        r"model\.extra",
        model(plants.waking, extra=lambda: nn.Dropout(0.1)),
        model(lambda net, x: net.extra(x), extra=lambda: nn.Dropout(0.1)),
        "error",
    ),
    Case(
        "dropout-in-evaluation",
        r"test_rules\.py",
        model(lambda net, x: F.dropout(x, 0.1)),
        model(lambda net, x: F.dropout(x, 0.1, training=net.training)),
        "error",
    ),
    Case(
        "not-multiples-of-8",
        r"model\.2",
        {"model": plants.wide(1024, 260), **BF16},
        {"model": plants.wide(1024, 264), **BF16},
    ),
    Case(
        "vocabulary-not-multiple-of-64",
        r"model\.2",
        {"model": plants.many_classes(5001), **BF16},
        {"model": plants.many_classes(5056), **BF16},
    ),
    Case(
        "linear-rule-with-adam",
        "optimizer.lr_scaling",
        {"optimizer__name": "adamw", "optimizer__lr_scaling": "linear", "data__global_batch_size": 512},
        {"optimizer__name": "adamw", "optimizer__lr_scaling": "sqrt", "data__global_batch_size": 512},
    ),
    Case(
        "sqrt-rule-with-sgd",
        "optimizer.lr_scaling",
        {"optimizer__lr_scaling": "sqrt", "data__global_batch_size": 512},
        {"optimizer__lr_scaling": "linear", "data__global_batch_size": 512},
    ),
    Case(
        "large-batch-without-warmup",
        "lr_scheduler",
        {"optimizer__lr_scaling": "linear", **LARGE},
        {"optimizer__lr_scaling": "linear", **LARGE, "lr_scheduler__warmup_epochs": 1},
    ),
    Case(
        "large-batch-decays-norms",
        "optimizer.weight_decay_exclude",
        {"optimizer__name": "lamb", "optimizer__weight_decay": 0.01},
        {
            "optimizer__name": "lamb",
            "optimizer__weight_decay": 0.01,
            "optimizer__weight_decay_exclude": "norms_and_biases",
        },
    ),
    Case(
        "small-micro-batches",
        "data.micro_batch_size",
        {"data__global_batch_size": 64, "data__micro_batch_size": 4},
        {"data__global_batch_size": 64, "data__micro_batch_size": "max"},
    ),
    Case(
        "samples-taken-one-by-one",
        "data",
        {"data": plants.rows(10_000)},
        {"data": plants.rows(10_000), "data__cache": "memory"},
    ),
    Case(
        "checkpoint-every-few-steps",
        "checkpoint.every_n_steps",
        {"checkpoint__every_n_steps": 1, **LONG},
        {"checkpoint__every_n_steps": 100, **LONG},
    ),
    Case(
        "logs-every-step",
        "trainer.log_every_n_steps",
        {"trainer__log_every_n_steps": 1, **LONG},
        {"trainer__log_every_n_steps": 10, **LONG},
    ),
    Case(
        "evaluation-outweighs-training",
        "trainer.evaluate_every_n_epochs",
        {"data__num_validation_samples": 5000, "trainer__epochs": 2},
        {"data__num_validation_samples": 5000, "trainer__epochs": 2, "trainer__evaluate_every_n_epochs": 0},
    ),
    Case(
        "checkpointing-one-block",
        "trainer.activation_checkpointing",
        {"model": plants.blocks(1), "trainer__activation_checkpointing": "full"},
        {"model": plants.blocks(2), "trainer__activation_checkpointing": "full"},
    ),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.rule}" for number, case in enumerate(CASES)])
def test_a_planted_fault_is_found_and_its_repaired_twin_is_silent(case: Case) -> None:
    found = lint(plants.config(**case.faulty))
    assert {(finding.rule, finding.severity) for finding in found} == {(case.rule, case.severity)}, found
    assert all(re.search(case.place, finding.place) for finding in found), found
    assert lint(plants.config(**case.repaired)) == []


ELSEWHERE = {
    "could-not-be-run": "test_unusual.py",
    "images-loaded-in-training-process": "test_unusual.py",
    "float32-where-bf16-is-fast": "test_unusual.py",
}
"""Rules that need more than a net of a few lines."""


def test_every_rule_has_a_planted_fault() -> None:
    rules = {rule.__name__.replace("_", "-") for rule in RULES}
    assert len(rules) == len(RULES) >= 25
    assert rules == {case.rule for case in CASES} | set(ELSEWHERE)
