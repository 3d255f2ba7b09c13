"""Next-token cross-entropy and accuracy, as sums over the tokens that count."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline import Task
from paceline.config.sections import ParallelConfig
from paceline.engine.dist_context import DistContext
from paceline.engine.evaluator import evaluate
from paceline.engine.loading import BatchLoader, SeededFetcher
from paceline.engine.precision import Precision
from paceline.engine.strategy import Strategy
from paceline.models.gpt import GPTConfig
from paceline.tasks.base import TaskOutput
from paceline.tasks.language_modeling import LanguageModelingConfig
from support.toys import fit, toy_config

VOCAB = 5


class Table(nn.Module):
    """A bigram model: each token has its logits."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.logits = nn.Parameter(torch.randn(VOCAB, VOCAB, generator=generator, dtype=torch.float64))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits[tokens]


TOKENS = torch.tensor([[0, 1, 2, 3], [4, 4, 0, 1], [2, 2, 2, 2]])

TARGETS = torch.tensor([[1, 2, 3, 4], [4, -100, 3, -100], [-100, -100, -100, -100]])


def build() -> Task:
    return LanguageModelingConfig(name="language_modeling").build(Table())


def output(rows: Any = slice(None)) -> TaskOutput:
    result = build().eval()((TOKENS[rows], TARGETS[rows]))
    assert isinstance(result, TaskOutput)
    return result


def by_hand() -> tuple[float, int, int]:
    """Loss, weight and right answers, a token at a time."""
    table = Table().logits.detach()
    loss, weight, correct = 0.0, 0, 0
    for token, target in zip(TOKENS.flatten().tolist(), TARGETS.flatten().tolist(), strict=True):
        if target != -100:
            loss -= table[token].log_softmax(0)[target].item()
            weight += 1
            correct += int(table[token].argmax().item() == target)
    return loss, weight, correct


def test_loss_weight_and_accuracy_are_sums_over_the_tokens_that_count() -> None:
    loss, weight, correct = by_hand()
    assert output().loss_sum.item() == pytest.approx(loss, abs=1e-13)
    assert isinstance(output().weight, Tensor)
    assert output().weight == weight == 6
    assert output().metrics["accuracy"] == correct > 0


def test_predictions_and_targets_are_of_the_tokens_that_count() -> None:
    result = output()
    predictions = Table().logits.argmax(1)[TOKENS]
    assert result.targets.tolist() == TARGETS[TARGETS != -100].tolist()
    assert result.predictions.tolist() == predictions[TARGETS != -100].tolist()


def test_nothing_that_counts_gives_zero_and_no_gradient() -> None:
    task = build()
    result = task((TOKENS[2:], TARGETS[2:]))
    result.loss_sum.backward()
    assert (result.loss_sum, result.weight) == (0, 0)
    assert not next(task.parameters()).grad.any()  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_sum_is_in_float32(dtype: torch.dtype) -> None:
    """In 16 bits a sum over thousands of tokens would lose them, or overflow."""
    model = GPTConfig(name="gpt", num_layers=1).build()
    tokens = torch.zeros(2, 128, dtype=torch.int64)
    with torch.autocast("cpu", dtype=dtype):
        assert model(tokens).dtype == dtype
        loss = LanguageModelingConfig(name="language_modeling").build(model)((tokens, tokens)).loss_sum
    assert loss.dtype == torch.float32


class Windows:
    """The three samples above."""

    def __len__(self) -> int:
        return 3

    def batch(self, ids: Tensor, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        return TOKENS[ids], TARGETS[ids]


@pytest.mark.parametrize("micro_batch_size", [1, 2, 3])
def test_evaluation_means_are_over_tokens(micro_batch_size: int) -> None:
    device = torch.device("cpu")
    loader = BatchLoader(SeededFetcher(Windows(), 0), device)
    means = evaluate(
        build(),
        loader,
        micro_batch_size,
        Precision("64-true", device),
        Strategy(ParallelConfig(), DistContext.current()),
    )
    loss, weight, correct = by_hand()
    assert means == pytest.approx({"loss": loss / weight, "accuracy": correct / weight}, abs=1e-13)


def test_a_tiny_gpt_learns_a_short_text_by_heart(tmp_path: Path) -> None:
    """Model, data and task together: a text that cannot be guessed is known in the end."""
    text = torch.randint(0, 64, (170,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    (tmp_path / "text").write_bytes(bytes(text.tolist()))
    config = toy_config(
        model={"name": "gpt", "vocab_size": 64, "context_length": 16, "num_layers": 1, "embedding_dim": 64},
        task={"name": "language_modeling"},
        data={"name": "text_file", "file": str(tmp_path / "text"), "context_length": 16, "global_batch_size": 10},
        optimizer={"name": "adamw", "lr": 0.02},
        trainer__max_steps=60,
        trainer__epochs=None,
        trainer__precision="32-true",
    )
    _, _, reporter = fit(config)
    losses = reporter.values("train/loss")
    entropy = F.cross_entropy(torch.zeros(1, 64), torch.zeros(1, dtype=torch.int64)).item()
    assert losses[0] == pytest.approx(entropy, abs=0.2)
    assert losses[-1] < 0.1
