"""What a step holds at its highest point, and how it follows the micro batch size."""

import torch
from torch import nn

from paceline.memory.fakes import on_fakes, without_data
from paceline.memory.kernels import Kernels
from paceline.memory.timeline import Growing, Timeline
from paceline.memory.tracking import StorageTracker

KIB = 1024


def test_the_peak_is_what_is_there_at_once_by_its_role() -> None:
    # weights come first; a large storage goes before two come that are smaller, but more together
    timeline = Timeline([10, 50, 30, 25], ["weights", "activations", "workspace", "gradients"], [1, 2, -2, 3, 4, -3])
    assert timeline.peak() == {"weights": 10, "gradients": 25, "optimizer": 0, "activations": 0, "workspace": 30}
    # CUDA gives memory in blocks
    assert Timeline([1, 513], ["weights", "weights"], [1, 2]).peak(rounded=True)["weights"] == 512 + 1024


def test_storages_grow_with_the_batch_or_stay() -> None:
    small, large = (Timeline([100, 4 * n], ["weights", "activations"], [1, 2]) for n in (2, 8))
    assert small.is_like(large)
    assert Growing(small, 2, large, 8).at(100).sizes == [100, 400]
    first = Timeline([1, 1], ["weights", "activations"], [1, 2, -2])
    assert not first.is_like(Timeline([1, 1], ["weights", "activations"], [1, 2]))
    assert not first.is_like(Timeline([1, 1], ["weights", "workspace"], [1, 2, -2]))


def test_what_operations_make_is_seen_when_it_comes_and_when_it_goes() -> None:
    with on_fakes():
        tracker = StorageTracker()
        weights = torch.empty(KIB, dtype=torch.uint8)
        tracker.add([weights], "weights")
        with tracker:
            first = weights + 1
            view = first[:5]
            del first  # lives on in its view
            second = torch.cat([weights, weights])
            del view, second
            torch.empty(KIB, dtype=torch.uint8)
        peak = tracker.timeline().peak()
    assert peak["weights"] == KIB
    assert sum(peak.values()) == 4 * KIB


def test_backward_frees_what_forward_kept() -> None:
    with on_fakes():
        layer, inputs = nn.Linear(KIB, KIB), torch.empty(8, KIB)
        tracker = StorageTracker()
        tracker.add(layer.parameters(), "weights")
        with tracker:
            layer(inputs).exp().sum().backward()
            held = tracker.timeline()
    activations = 2 * 8 * KIB * 4  # the layer's output and the exponential, which backward needs
    assert sum(held.peak().values()) >= 4 * KIB * (KIB + 1) + activations
    alive = sum(size for number, size in enumerate(held.sizes, 1) if -number not in held.moments)
    assert alive == 2 * 4 * KIB * (KIB + 1)  # weights and gradients


def test_kernels_are_run_once_for_what_they_take_themselves() -> None:
    kernels = Kernels()
    image, weight = torch.zeros(8, 16, 32, 32), torch.zeros(32, 16, 3, 3)
    arguments = (image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    with kernels.profiled():
        with on_fakes() as mode:
            fakes = tuple(mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in arguments)
            first = kernels.run(torch.ops.aten.convolution.default, fakes, {})
        again = kernels.run(torch.ops.aten.convolution.default, arguments, {})
        other = kernels.run(torch.ops.aten.relu.default, (image,), {})
    assert first is not None
    assert first == again != other
    assert kernels.taken[other or ""] == 0
    assert 0 <= kernels.taken[first] <= 4 * 8 * 32 * 32 * 32 + weight.numel() * 4 + image.numel() * 4


def test_kernels_that_take_too_much_time_or_memory_are_left_out() -> None:
    with on_fakes():
        for kernels, size in ((Kernels(seconds=0.0), 3), (Kernels(), 2**40)):
            assert kernels.run(torch.ops.aten.relu.default, (torch.empty(size),), {}) is None
            assert kernels.left_out


def test_weights_that_are_shared_stay_shared_without_data() -> None:
    model = nn.ModuleDict({"inner": nn.Linear(4, 4), "outer": nn.Linear(4, 4), "norm": nn.BatchNorm1d(4)})
    model["outer"].weight = model["inner"].weight
    with on_fakes() as mode:
        without_data(model, mode)
        assert type(model["inner"].weight.data).__name__ == "FakeTensor"
        assert model["outer"].weight is model["inner"].weight
        assert isinstance(model["inner"].weight, nn.Parameter)
        assert type(model["norm"].running_mean).__name__ == "FakeTensor"
