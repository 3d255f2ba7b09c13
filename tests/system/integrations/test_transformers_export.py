"""Models of Hugging Face transformers, traced with one padded batch, take other batch sizes and sequence lengths."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from paceline.runs.tracing import save_program
from support.toys import toy_config

transformers = pytest.importorskip("transformers")

VOCABULARY, MOST_TOKENS = 50, 40


def bert() -> nn.Module:
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=MOST_TOKENS, num_labels=3, **size)
    return transformers.BertForSequenceClassification(config).eval()


def gpt2() -> nn.Module:
    size = {"n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=MOST_TOKENS, **size)
    return transformers.GPT2LMHeadModel(config).eval()


def batch(lengths: list[int], has_label_per_token: bool) -> dict[str, Tensor]:
    """Texts of some lengths, padded to the longest."""
    generator = torch.Generator().manual_seed(sum(lengths))
    ids = pad_sequence([torch.randint(1, VOCABULARY, (n,), generator=generator) for n in lengths], batch_first=True)
    mask = (ids > 0).long()
    labels = ids.where(ids > 0, -100) if has_label_per_token else torch.arange(len(ids)) % 3
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def saved(build: Callable[[], nn.Module], lengths: list[int], file: Path) -> nn.Module:
    """A model, traced with samples of a validation set of some lengths."""
    model = build()

    def collate(samples: list[int]) -> dict[str, Tensor]:
        return batch(samples, build is gpt2)

    data = {"train": lengths, "validation": lengths, "collate_fn": collate}
    config = toy_config(
        model={"path": build}, data={"path": lambda: data}, task={"name": "model_loss"}, trainer__precision="32-true"
    )
    assert save_program(config, model, file)["batch_sizes"] == [1, 5]
    return model


@pytest.mark.parametrize("build", [bert, gpt2])
@pytest.mark.parametrize(
    "lengths",
    [pytest.param([12] * 5, marks=pytest.mark.slow, id="one length"), pytest.param([7, 12, 5, 9, 16], id="padded")],
)
def test_other_batch_sizes_and_sequence_lengths(build: Any, lengths: list[int], tmp_path: Path) -> None:
    model = saved(build, lengths, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for others in ([12, 3], [6], [20, 1, 9], [MOST_TOKENS] * 4):
        inputs = batch(others, build is gpt2)
        with torch.no_grad():
            wanted, given = model(**inputs), program(**inputs)
        torch.testing.assert_close(given["logits"], wanted["logits"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(given["loss"], wanted["loss"], rtol=1e-4, atol=1e-5)
    assert type(given) is dict
    assert type(model(**inputs)) is not dict


@pytest.mark.slow
def test_the_program_needs_no_transformers(tmp_path: Path) -> None:
    saved(bert, [12] * 5, tmp_path / "model.pt2")
    code = f"""
import sys, torch
program = torch.export.load({str(tmp_path / "model.pt2")!r}).module()
ids = torch.ones(2, 9, dtype=torch.long)
output = program(input_ids=ids, attention_mask=ids, labels=torch.zeros(2, dtype=torch.long))
assert output["logits"].shape == (2, 3)
assert "transformers" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
