"""Random numbers that are a function of what they are for, not of what was drawn before them."""

from functools import lru_cache

import torch
from torch import Tensor

# SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014), in Sebastiano
# Vigna's public-domain form (prng.di.unimi.it/splitmix64.c). int64 products wrap modulo 2**64, as the original's do.
_GAMMA = 0x9E3779B97F4A7C15
_FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31


def splitmix64(state: Tensor) -> Tensor:
    """The output of SplitMix64 for each state; a bijection of the 64-bit numbers, so equal only for equal states.

    Args:
        state: int64 of any shape, read as unsigned bits.

    Returns:
        int64 of the same shape, each bit of which looks random.
    """
    bits = state + _signed(_GAMMA)
    for shift, factor in _FACTORS:
        bits = (bits ^ _shift_right(bits, shift)) * _signed(factor)
    return bits ^ _shift_right(bits, _LAST_SHIFT)


def uniforms(seed: int, epoch: int, ids: Tensor, draws: int) -> Tensor:
    """Uniform numbers for each sample of an epoch, whichever samples stand beside it.

    Seed and epoch choose a stream of SplitMix64; number j of sample i is the stream's output i * draws + j.

    Args:
        seed: the run's seed.
        epoch: the epoch, counted from 0.
        ids: int64 of shape [n], the samples' indices in the data set.
        draws: how many numbers each sample gets.

    Returns:
        float64 of shape [draws, n] in [0, 1), on the device of `ids`.
    """
    places = ids * draws + torch.arange(draws, device=ids.device)[:, None]
    bits = splitmix64(places * _signed(_GAMMA) + _stream(seed, epoch))
    return _shift_right(bits, 11).double() * 2.0**-53


@lru_cache(maxsize=16)
def _stream(seed: int, epoch: int) -> int:
    return int(splitmix64(splitmix64(torch.tensor(seed)) + epoch))


def fixed_order(count: int) -> Tensor:
    """A permutation of `range(count)` that is the same in every version of everything, int64 of shape [count]."""
    order: Tensor = splitmix64(torch.arange(count)).argsort()
    return order


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _shift_right(bits: Tensor, by: int) -> Tensor:
    # torch's own shift of int64 repeats the sign bit; the mask makes it the unsigned shift.
    shifted: Tensor = (bits >> by) & (2 ** (64 - by) - 1)
    return shifted
