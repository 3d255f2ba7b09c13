"""The decoder-only transformer."""

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.config.loading import validate
from paceline.errors import ConfigError
from paceline.models._gpt import GPT
from paceline.models.gpt import GPTConfig

GPT2 = {"vocab_size": 50257, "context_length": 1024, "num_layers": 12, "num_heads": 12, "embedding_dim": 768}

TINY = {"vocab_size": 11, "context_length": 8, "num_layers": 3, "num_heads": 2, "embedding_dim": 12}


def build(**fields: Any) -> GPT:
    torch.manual_seed(0)
    model = GPTConfig.model_validate({"name": "gpt", **TINY, **fields}).build()
    assert isinstance(model, GPT)
    return model


def tokens(samples: int = 4, length: int = 8) -> Tensor:
    return torch.randint(0, 11, (samples, length), generator=torch.Generator().manual_seed(1))


def count(**fields: Any) -> int:
    """Parameters of a model whose weights are neither held nor drawn."""
    with torch.device("meta"), pytest.MonkeyPatch.context() as patch:
        for name in ("normal_", "uniform_", "kaiming_uniform_"):
            patch.setattr(nn.init, name, lambda tensor, *_, **__: tensor)
        return sum(parameter.numel() for parameter in build(**fields).parameters())


# The size


def test_the_smallest_gpt2_has_the_published_number_of_parameters() -> None:
    assert count(**GPT2) == 124_439_808


def test_what_each_option_adds() -> None:
    dim, layers, vocab = 12, 3, 11
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
        for index in range(3):
            block = f"blocks.{index}"
            x = x + attention(f"{block}.attention", norm(f"{block}.attention_norm", x))
            hidden = gelu(linear(f"{block}.mlp.expansion", norm(f"{block}.mlp_norm", x)))
            x = x + linear(f"{block}.mlp.projection", hidden)
        return norm("norm", x) @ state["token_embedding.weight"].T

    return torch.stack([one(text) for text in inputs])


def test_equals_its_formulas() -> None:
    model = build().double()
    for parameter in model.parameters():  # biases too, and all of a size that shows
        nn.init.normal_(parameter, std=0.3)
    torch.testing.assert_close(model(tokens()), slow_gpt(model, tokens()), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("changed", range(8))
def test_a_token_changes_no_logits_before_it(changed: int) -> None:
    model, inputs = build().double(), tokens()
    other = inputs.clone()
    other[:, changed] = (other[:, changed] + 1) % 11
    before, after = model(inputs), model(other)
    assert after[:, :changed].equal(before[:, :changed])
    assert (after[:, changed:] != before[:, changed:]).any(dim=-1).all()


def test_a_shorter_text_gives_the_first_logits() -> None:
    model = build().double()
    torch.testing.assert_close(model(tokens()[:, :5]), model(tokens())[:, :5], atol=1e-13, rtol=0)


def test_more_tokens_than_the_context_are_refused() -> None:
    with pytest.raises(ValueError, match="context_length"):
        build()(tokens(length=9))


def test_dropout_is_for_training_only() -> None:
    model = build(dropout=0.5)
    assert not model.train()(tokens()).equal(model(tokens()))
    assert model.eval()(tokens()).equal(model(tokens()))
    assert build().train()(tokens()).equal(build().eval()(tokens()))


# The weights


def test_tied_embeddings_are_one_parameter() -> None:
    tied, untied = build(), build(tie_embeddings=False)
    assert set(untied.state_dict()) - set(tied.state_dict()) == {"output.weight"}
    untied.output.weight = untied.token_embedding.weight  # type: ignore[union-attr]
    untied.load_state_dict({**tied.state_dict(), "output.weight": tied.token_embedding.weight})
    assert untied(tokens()).equal(tied(tokens()))


def test_the_gradient_of_tied_embeddings_is_the_sum_of_both_uses() -> None:
    tied, untied = build().double(), build(tie_embeddings=False).double()
    untied.load_state_dict({**tied.state_dict(), "output.weight": tied.token_embedding.weight})
    for model in (tied, untied):
        F.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten()).backward()  # type: ignore[no-untyped-call]
    both = untied.token_embedding.weight.grad + untied.output.weight.grad  # type: ignore[union-attr, operator]
    torch.testing.assert_close(tied.token_embedding.weight.grad, both, atol=1e-13, rtol=0)


def test_initial_weights_are_those_of_gpt2() -> None:
    model = build(vocab_size=500, embedding_dim=256, context_length=200, num_layers=8)
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
    with pytest.raises(ConfigError) as caught:
        validate({"name": "x", "model": {"name": "gpt", **fields}, "data": {"name": "text_file"}})
    (problem,) = caught.value.problems
    assert (problem.code, problem.key) == ("contradiction", key)
    assert re.findall(r"\d+", problem.hint) == nearest
