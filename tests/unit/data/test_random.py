"""The counter-based random numbers behind augmentation and fixed splits."""

import torch

from paceline.data._random import fixed_order, splitmix64, uniforms

GAMMA = 0x9E3779B97F4A7C15

# The first outputs of the published generator for the seed 1234567.
PUBLISHED = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]


def signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def reference(state: int) -> int:
    """SplitMix64 as published, in Python's unbounded integers."""
    bits = (state + GAMMA) % 2**64
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
    return bits ^ (bits >> 31)


def test_gives_the_published_outputs_and_wraps_like_unsigned_numbers() -> None:
    states = torch.tensor([signed(1234567 + step * GAMMA) for step in range(5)])
    assert [value % 2**64 for value in splitmix64(states).tolist()] == PUBLISHED
    extremes = [-1, -(2**63), 2**63 - 1, 0, -123456789]
    assert splitmix64(torch.tensor(extremes)).tolist() == [signed(reference(state % 2**64)) for state in extremes]


def test_uniforms_equal_the_scalar_reference() -> None:
    seed, epoch, draws, ids = 2**63 - 1, 7, 3, [0, 5, 4095]
    stream = reference(reference(seed) + epoch)
    expected = [
        [(reference(stream + (sample * draws + draw) * GAMMA) >> 11) / 2**53 for sample in ids] for draw in range(draws)
    ]
    assert uniforms(seed, epoch, torch.tensor(ids), draws).tolist() == expected


def test_fixed_order_is_a_permutation_that_never_changes() -> None:
    assert fixed_order(1000).sort().values.equal(torch.arange(1000))
    by_reference = sorted(range(20), key=lambda index: signed(reference(index)))
    assert fixed_order(20).tolist() == by_reference
