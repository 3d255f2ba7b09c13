"""The decoder-only transformer."""

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.config.experiment import validate
from paceline.errors import ConfigError
from paceline.models._gpt import GPT
from support.refusals import refused
from support.sentences import CONTEXT, VOCAB, tiny_gpt

GPT2 = {"vocab_size": 50257, "context_length": 1024, "num_layers": 12, "num_heads": 12, "embedding_dim": 768}


def tokens(samples: int = 4, length: int = CONTEXT) -> Tensor:
    return torch.randint(0, VOCAB, (samples, length), generator=torch.Generator().manual_seed(1))


def count(**fields: Any) -> int:
    """Parameters of a model whose weights are neither held nor drawn."""
    with torch.device("meta"), pytest.MonkeyPatch.context() as patch:
        for name in ("normal_", "uniform_", "kaiming_uniform_"):
            patch.setattr(nn.init, name, lambda tensor, *_, **__: tensor)
        return sum(parameter.numel() for parameter in tiny_gpt(**fields).parameters())


# The size


def test_the_smallest_gpt2_has_the_published_number_of_parameters() -> None:
    assert count(**GPT2) == 124_439_808


def test_what_each_option_adds() -> None:
    dim, layers, vocab = 12, 2, VOCAB
    assert count(tie_embeddings=False) - count() == vocab * dim
    # a block: of the two LayerNorms, of attention's query, key, value and projection, of the MLP
    assert count() - count(bias=False) == layers * (2 * dim + 4 * dim + 5 * dim) + dim
    assert count(**{**GPT2, "vocab_size": 50304}) - count(**GPT2) == 47 * 768


# What it computes


def slow_gpt(model: GPT, inputs: Tensor) -> Tensor:
    """GPT-2 by its formulas, a head and a place at a time."""
    state = model.state_dict()
    dim, heads = 12, 2

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    def gelu(x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def attention(name: str, x: Tensor) -> Tensor:
        parts = linear(f"{name}.query_key_value", x).split(dim, dim=-1)
        taken = torch.zeros_like(x)
        for head in range(heads):
            own = slice(head * dim // heads, (head + 1) * dim // heads)
            query, key, value = (part[:, own] for part in parts)
            for place in range(len(x)):
                scores = key[: place + 1] @ query[place] / math.sqrt(dim / heads)
                taken[place, own] = scores.softmax(0) @ value[: place + 1]
        return linear(f"{name}.projection", taken)

    def one(text: Tensor) -> Tensor:
        x = state["token_embedding.weight"][text] + state["position_embedding.weight"][: len(text)]
        for index in range(2):
            block = f"blocks.{index}"
            x = x + attention(f"{block}.attention", norm(f"{block}.attention_norm", x))
            hidden = gelu(linear(f"{block}.mlp.expansion", norm(f"{block}.mlp_norm", x)))
            x = x + linear(f"{block}.mlp.projection", hidden)
        return norm("norm", x) @ state["token_embedding.weight"].T

    return torch.stack([one(text) for text in inputs])


def test_equals_its_formulas() -> None:
    model = tiny_gpt().double()
    for parameter in model.parameters():  # biases too, and all of a size that shows
        nn.init.normal_(parameter, std=0.3)
    torch.testing.assert_close(model(tokens()), slow_gpt(model, tokens()), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("changed", [0, 3, 7])
def test_a_token_changes_no_logits_before_it(changed: int) -> None:
    model, inputs = tiny_gpt().double(), tokens()
    other = inputs.clone()
    other[:, changed] = (other[:, changed] + 1) % VOCAB
    before, after = model(inputs), model(other)
    assert after[:, :changed].equal(before[:, :changed])
    assert (after[:, changed:] != before[:, changed:]).any(dim=-1).all()
    torch.testing.assert_close(model(inputs[:, :5]), before[:, :5], atol=1e-13, rtol=0)


def test_more_tokens_than_the_context_are_refused() -> None:
    with pytest.raises(ValueError, match="context_length"):
        tiny_gpt()(tokens(length=9))


def test_dropout_is_for_training_only() -> None:
    model = tiny_gpt(dropout=0.5)
    assert not model.train()(tokens()).equal(model(tokens()))
    assert model.eval()(tokens()).equal(model(tokens()))
    assert tiny_gpt().train()(tokens()).equal(tiny_gpt().eval()(tokens()))


# The weights


def test_tied_embeddings_are_one_parameter_whose_gradient_is_the_sum_of_both_uses() -> None:
    tied, untied = tiny_gpt().double(), tiny_gpt(tie_embeddings=False).double()
    assert set(untied.state_dict()) - set(tied.state_dict()) == {"output.weight"}
    untied.load_state_dict({**tied.state_dict(), "output.weight": tied.token_embedding.weight})
    for model in (tied, untied):
        F.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten()).backward()  # type: ignore[no-untyped-call]
    both = untied.token_embedding.weight.grad + untied.output.weight.grad  # type: ignore[union-attr, operator]
    torch.testing.assert_close(tied.token_embedding.weight.grad, both, atol=1e-13, rtol=0)


def test_initial_weights_are_those_of_gpt2() -> None:
    model = tiny_gpt(vocab_size=500, embedding_dim=256, context_length=200, num_layers=8)
    wanted = {"position_embedding.weight": 0.01}
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert parameter.eq(1).all(), name
        else:
            std = wanted.get(name, 0.02 / math.sqrt(16) if "projection" in name else 0.02)
            assert parameter.std().item() == pytest.approx(std, rel=0.03), name


# The config


@pytest.mark.parametrize(
    ("fields", "key", "nearest"),
    [
        ({"num_heads": 3, "embedding_dim": 100}, "model.embedding_dim", ["99", "102"]),
        ({"num_heads": 5}, "model.num_heads", ["125", "130"]),
        ({"embedding_dim": 130}, "model.embedding_dim", ["128", "132"]),
        ({"num_heads": 8, "embedding_dim": 2}, "model.embedding_dim", ["8"]),
    ],
)
def test_heads_must_divide_the_width(fields: dict[str, int], key: str, nearest: list[str]) -> None:
    refusal = refused(
        ConfigError, validate, {"name": "x", "model": {"name": "gpt", **fields}, "data": {"name": "text_file"}}
    )
    (problem,) = refusal.problems
    assert (problem.code, problem.key) == ("contradiction", key)
    assert re.findall(r"\d+", problem.hint) == nearest
