"""Planted faults that the config brings about, each with its repaired twin."""

from typing import Any

from support.lint import plants, task_plants
from support.lint.cases import Case

BF16 = {"trainer__precision": "bf16-mixed"}
LONG = {"trainer__max_steps": 1000}
ADAM = {"optimizer__name": "adamw", "optimizer__lr": 0.01}
LAMB = {"optimizer__name": "lamb", "optimizer__weight_decay": 0.01}
LINEAR, SQRT = ({"optimizer__lr_scaling": rule} for rule in ("linear", "sqrt"))
FOURFOLD = {"data__global_batch_size": 256, "optimizer__base_batch_size": 64}
LARGE = {"data__global_batch_size": 1024, "optimizer__base_batch_size": 64}
BATCH = {"data__global_batch_size": 512}


def case(rule: str, place: str, faulty: dict[str, Any], changes: dict[str, Any]) -> Case:
    """A fault that some changes of the config repair."""
    return Case(rule, place, faulty, {**faulty, **changes})


CONFIG_CASES = [
    case(
        "not-multiples-of-8", r"model\.2", {"model": plants.wide(1024, 260), **BF16}, {"model": plants.wide(1024, 264)}
    ),
    case(
        "vocabulary-not-multiple-of-64",
        r"model\.2",
        {"model": plants.many_classes(5001), **BF16},
        {"model": plants.many_classes(5056)},
    ),
    case("learning-rate-too-high", "optimizer.lr", {"optimizer__lr": 30.0}, {"trainer__max_grad_norm": 0.25}),
    case(
        "learning-rate-too-high",
        "optimizer.lr",
        {**ADAM, "optimizer__lr": 0.2},
        {"optimizer__lr": 0.08, **SQRT, **FOURFOLD},
    ),
    case("linear-rule-with-adam", "optimizer.lr_scaling", {**ADAM, **LINEAR, **BATCH}, SQRT),
    case("sqrt-rule-with-sgd", "optimizer.lr_scaling", {**SQRT, **BATCH}, LINEAR),
    case("large-batch-without-warmup", "lr_scheduler", {**LINEAR, **LARGE}, {"lr_scheduler__warmup_epochs": 1}),
    case(
        "large-batch-decays-norms",
        "optimizer.weight_decay_exclude",
        LAMB,
        {"optimizer__weight_decay_exclude": "norms_and_biases"},
    ),
    case(
        "small-micro-batches",
        "data.micro_batch_size",
        {"data__global_batch_size": 64, "data__micro_batch_size": 4},
        {"data__micro_batch_size": "max"},
    ),
    case("samples-taken-one-by-one", "data", {"data": task_plants.rows(10_000)}, {"data__cache": "memory"}),
    case(
        "checkpoint-every-few-steps",
        "checkpoint.every_n_steps",
        {"checkpoint__every_n_steps": 1, **LONG},
        {"checkpoint__every_n_steps": 100},
    ),
    case(
        "logs-every-step",
        "trainer.log_every_n_steps",
        {"trainer__log_every_n_steps": 1, **LONG},
        {"trainer__log_every_n_steps": 10},
    ),
    case(
        "evaluation-outweighs-training",
        "trainer.evaluate_every_n_epochs",
        {"data__num_validation_samples": 5000, "trainer__epochs": 2},
        {"trainer__evaluate_every_n_epochs": 0},
    ),
    case(
        "checkpointing-one-block",
        "trainer.activation_checkpointing",
        {"model": plants.blocks(1), "trainer__activation_checkpointing": "full"},
        {"model": plants.blocks(2)},
    ),
    Case("lightning-task", "task", {"model": plants.LitNet}, {"model": plants.Net}),
    Case(
        "monitored-metric-missing",
        "checkpoint.monitor",
        {"task": task_plants.Measured, "checkpoint__monitor": "val/acc"},
        {"task": task_plants.Measured, "checkpoint__monitor": "val/accuracy"},
        "error",
    ),
    Case(
        "targets-out-of-range",
        "task",
        {"data": task_plants.labelled(first=1)},
        {"data": task_plants.labelled(first=0)},
        "error",
    ),
    Case(
        "samples-of-different-shapes",
        "data",
        {"data": task_plants.photographs(growth=1)},
        {"data": task_plants.photographs(growth=0)},
        "error",
    ),
]
