"""Faults of what happens around the steps: loading, logging, evaluating, saving."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset

from paceline.config.monitor_checks import PREFIX, can_be_reported, monitors
from paceline.engine.blocks import find_blocks, match_blocks
from paceline.linting.finding import Fault
from paceline.linting.subject import Subject
from paceline.tasks._task import Task

LONG = 200
"""Steps of a training for which it matters what is done at each."""
FEW = 10
MANY_SAMPLES = 10_000
AMPERE = 8


def images_loaded_in_training_process(subject: Subject) -> Iterator[Fault]:
    """Files that are read and decoded while the GPU waits."""
    data = subject.config.data
    from_files = data.describe() == "image_folder"
    if from_files and data.num_workers == 0 and data.cache == "none" and subject.may_use_gpu:
        reason = "images are read and decoded in the training process, while the GPU waits"
        yield Fault("data.num_workers", reason, "write num_workers: 4, or as many as there are cores for each worker")


def samples_taken_one_by_one(subject: Subject) -> Iterator[Fault]:
    """Tensors in memory that are cut into samples and put together again."""
    dataset: Any = subject.batches.datasets.train if subject.batches else None
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if type(dataset) is TensorDataset and len(dataset) >= MANY_SAMPLES and subject.config.data.cache == "none":
        reason = f"a TensorDataset of {len(dataset):,} samples is taken apart sample by sample and put together again"
        yield Fault("data", reason, "write data.cache: memory, or device where it fits into the GPU's")


def checkpoint_every_few_steps(subject: Subject) -> Iterator[Fault]:
    """Saving takes longer than the steps between."""
    every, total = subject.config.checkpoint.every_n_steps, subject.total_steps
    if every is not None and every < FEW and (total or 0) >= LONG:
        reason = f"the state is saved at every {every} of {total:,} steps" if every > 1 else "each step is saved"
        yield Fault("checkpoint.every_n_steps", reason, f"write {max(LONG // 2, 1)} or more")


def logs_every_step(subject: Subject) -> Iterator[Fault]:
    """The loss is read from the device at each step."""
    every, total = subject.config.trainer.log_every_n_steps, subject.total_steps
    if every == 1 and (total or 0) >= LONG and subject.may_use_gpu:
        reason = f"each of {total:,} steps reads the loss, for which a GPU has to be waited for"
        yield Fault("trainer.log_every_n_steps", reason, "write 10 or more")


def evaluation_outweighs_training(subject: Subject) -> Iterator[Fault]:
    """Evaluation takes longer than training."""
    sizes, trainer = subject.sizes, subject.config.trainer
    # a forward pass is a third of a training step
    outweighs = sizes is not None and sizes.validation > 3 * sizes.train
    if sizes and outweighs and trainer.evaluate_every_n_epochs == 1 and (trainer.epochs or 1) > 1:
        reason = f"each epoch of {sizes.train:,} samples is followed by an evaluation on {sizes.validation:,}"
        yield Fault(
            "trainer.evaluate_every_n_epochs", reason, "write a larger number, or take a smaller validation set"
        )


def checkpointing_one_block(subject: Subject) -> Iterator[Fault]:
    """Activation checkpointing that keeps nothing less at the peak."""
    trainer = subject.config.trainer
    if trainer.activation_checkpointing not in ("full", "selective"):
        return
    model, patterns = subject.task.model, trainer.activation_checkpointing_blocks
    key = "trainer.activation_checkpointing_blocks"
    blocks = list(find_blocks(model) if patterns is None else match_blocks(model, patterns, key))
    if len(blocks) == 1:
        name = blocks[0][0] or "the whole model"
        reason = f"there is one block ({name}): all in it is computed twice, and is in memory at once all the same"
        yield Fault("trainer.activation_checkpointing", reason, f"name several modules in {key}, or write none")


def float32_where_bf16_is_fast(subject: Subject) -> Iterator[Fault]:
    """Float32 products on a GPU with tensor cores for bf16 and TF32."""
    trainer = subject.config.trainer
    if trainer.precision != "32-true" or trainer.float32_matmul_precision != "highest" or not subject.may_use_gpu:
        return
    if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= AMPERE:
        reason = f"{torch.cuda.get_device_name()} multiplies bf16 and TF32 several times as fast as float32"
        yield Fault("trainer.precision", reason, "write bf16-mixed, or float32_matmul_precision: high for TF32")


def monitored_metric_missing(subject: Subject) -> Iterator[Fault]:
    """A metric that ends training after its first evaluation, because the task does not report it."""
    trace = subject.trace
    if trace is None or trace.evaluated is None or type(subject.task).compute is not Task.compute:
        return  # what `compute` makes of the sums is the task's own
    of_task = ("loss", *map(str, trace.evaluated.metrics))
    names = [*of_task, *(metric.name for metric in subject.config.metrics)]
    for key, monitor in monitors(subject.config):
        if not can_be_reported(monitor, names):
            reported = ", ".join(PREFIX + name for name in names)
            reason = f"it watches {monitor!r}, which the evaluation does not report: training would end there"
            yield Fault(key, reason, f"take one of {reported}, or add it to the metrics of the TaskOutput", "error")
