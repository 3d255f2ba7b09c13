"""Planted faults of models and tasks, each with its repaired twin."""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from support.lint import plants, task_plants
from support.lint.plants import WIDTH, net

HERE = r"plants\.py:\d+$"
LINEAR = {"extra": lambda: nn.Linear(WIDTH, WIDTH)}


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
    return {"task": task_plants.task_with(*arguments, **options)}


def softmax(dim: int) -> Any:
    return lambda net, x: F.softmax(x, dim=dim)


MODEL_CASES = [
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
        model(end=lambda net, x: F.softmax(x, dim=1).clone().mul_(8)),
        "error",
    ),
    Case("softmax-before-cross-entropy", r"cases\.py:\d+$", model(end=softmax(1)), model(), "error"),
    Case(
        "softmax-before-cross-entropy",
        r"cases\.py:\d+$",
        model(end=lambda net, x: x.log_softmax(1).unsqueeze(0).squeeze(0)),
        model(),
    ),
    Case(
        "sigmoid-before-bce-with-logits",
        r"cases\.py",
        task(task_plants.binary(lambda x: torch.sigmoid(x))),
        task(task_plants.binary(lambda x: x)),
        "error",
    ),
    Case(
        "nll-of-probabilities",
        HERE,
        task(task_plants.likelihood(F.softmax)),
        task(task_plants.likelihood(F.log_softmax)),
        "error",
    ),
    Case(
        "double-softmax",
        r"cases\.py:\d+$",
        model(lambda net, x: F.softmax(F.softmax(x, dim=1), dim=1)),
        model(softmax(1)),
        "error",
    ),
    Case(
        "relu-before-cross-entropy",
        r"cases\.py",
        model(end=lambda net, x: F.relu(x, inplace=True)),
        model(lambda net, x: F.relu(x)),
        "error",
    ),
    Case("loss-is-a-mean", HERE, task(task_plants.averaged), task(task_plants.summed), "error"),
    Case("loss-without-gradient", "task", model(end=lambda net, x: x.detach()), model(), "error"),
    Case("in-place-breaks-backward", "model", model(plants.in_place(False)), model(plants.in_place(True)), "error"),
    Case(
        "graphs-are-kept",
        r"Changed\.losses",
        task(task_plants.kept(False), losses=list),
        task(task_plants.kept(True), losses=list),
        "error",
    ),
    Case(
        "graphs-are-kept",
        r"Changed\.losses",
        task(task_plants.kept(False), losses=task_plants.queue),
        task(task_plants.kept(True), losses=task_plants.queue),
        "error",
    ),
    Case("waits-for-the-device", HERE, model(plants.clipped), model(lambda net, x: x.clamp(-100, 100))),
    Case(
        "waits-for-the-device",
        r"cases\.py",
        model(lambda net, x: x / float(x.max())),
        model(plants.dropped_layer, extra=lambda: nn.Linear(WIDTH, WIDTH).requires_grad_(False)),
    ),
    Case("waits-for-the-device", r"cases\.py", model(lambda net, x: x * x.mean().item()), model()),
    Case("waits-for-the-device", r"cases\.py", model(lambda net, x: x + x.cpu()), model()),
    Case("tensor-is-printed", HERE, model(plants.printed), model(plants.printed_shape)),
    Case("numpy-in-forward", HERE, model(plants.by_numpy), model(lambda net, x: x + torch.tanh(x))),
    Case("device-is-named", HERE, model(plants.to_cuda), model(lambda net, x: x.to(x.device, torch.float32))),
    Case(
        "made-in-host-memory",
        r"cases\.py",
        model(lambda net, x: x + torch.arange(WIDTH)),
        model(lambda net, x: x + torch.arange(WIDTH, device=x.device) + torch.tensor(0.5)),
    ),
    Case(
        "made-in-host-memory",
        r"cases\.py",
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
    Case("backward-in-forward", HERE, task(task_plants.own_backward), task(task_plants.summed), "error"),
    Case(
        "graph-is-retained",
        HERE,
        model(end=plants.penalised(retain_graph=True)),
        model(end=plants.penalised(create_graph=True)),
    ),
    Case("own-autocast", HERE, model(plants.in_float16(True)), model(plants.in_float16(False)), "error"),
    Case("own-autocast", HERE, model(plants.in_float16(True, torch.bfloat16)), model()),
    Case(
        "own-grad-scaler",
        r"Changed\.scaler",
        task(task_plants.summed, scaler=task_plants.scaler),
        task(task_plants.summed),
        "error",
    ),
    Case("parallel-wrapper", "model", {"model": lambda: nn.DataParallel(plants.Net())}, {"model": plants.Net}, "error"),
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
        r"cases\.py",
        model(lambda net, x: F.dropout(x, 0.1)),
        model(lambda net, x: F.dropout(x, 0.1, training=net.training)),
        "error",
    ),
    Case(
        "dropout-of-nearly-all",
        r"model\.extra",
        model(lambda net, x: net.extra(x), extra=lambda: nn.Dropout(0.95)),
        model(lambda net, x: net.extra(x), extra=lambda: nn.Dropout(0.9)),
    ),
    Case(
        "dropout-of-nearly-all",
        r"model\.extra",
        model(lambda net, x: net.extra(x), extra=lambda: nn.AlphaDropout(1.0)),
        model(lambda net, x: net.extra(x), extra=lambda: nn.AlphaDropout(0.1)),
        "error",
    ),
]
