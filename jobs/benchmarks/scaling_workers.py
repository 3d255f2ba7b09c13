"""The first part of scaling.py: one group of Ray workers, of which the first 1, 2, 4, ... train in turn.

driver:   measure  ->  a TorchTrainer whose workers `serve`  ->  their turns, one by one, through a queue
rank 0:   chooses each turn and tells the others through the group's store, and the driver how long it took
"""

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from paceline.config.experiment import ExperimentConfig

WARM_UP_STEPS = 10
"""Of each turn, at least; not timed."""
LISTEN_SECONDS = 60.0
AGAIN = "again"
"""The turn of the fewest workers a second time: what differs from the first is the machine's noise."""
APART = "apart"
"""All workers train at the same time, but each for itself: what they take from each other without any exchange."""

Spent = tuple[int, float]
"""Steps, and the seconds that they took."""
Key = tuple[str, int]
"""`weak`, `strong`, `apart` or `again`, and how many workers."""


@dataclass(frozen=True)
class ScalingTurn:
    """A short training by some of the workers."""

    mode: str
    workers: int
    global_batch_size: int
    steps: int
    """Those that were timed."""
    seconds: float
    """What these took."""
    round: int
    """Counted from 1; 0 is for warming up, and to find out how long a step takes."""

    @property
    def samples_per_second(self) -> float:
        """Of all workers together."""
        return self.global_batch_size * self.steps / self.seconds

    @property
    def step_seconds(self) -> float:
        """Mean of the timed steps."""
        return self.seconds / self.steps


def settings(config: ExperimentConfig, counts: Sequence[int]) -> dict[Key, ExperimentConfig]:
    """The config of each kind of turn. The config's global batch is that of one worker, or of the fewest.

    Raises:
        ConfigError: the global batch cannot be cut up so.
    """
    batch, first = config.data.global_batch_size, min(counts)
    one = _with(config, first, batch)
    found: dict[Key, ExperimentConfig] = {("weak", first): one, (AGAIN, first): one}
    for count in sorted(counts)[1:]:
        found["weak", count] = _with(config, count, batch * count // first)
        found["strong", count] = _with(config, count, batch)
        if first == 1:
            found[APART, count] = one
    return found


def _with(config: ExperimentConfig, workers: int, global_batch_size: int) -> ExperimentConfig:
    return config.with_overrides(
        {
            "scaling.num_workers": workers,
            "data.global_batch_size": global_batch_size,
            "data.drop_last": True,  # so that all steps are of the same size
            "trainer.epochs": None,
            "trainer.max_steps": 1,
            "trainer.evaluate_every_n_epochs": 0,
        }
    )


def measure(
    config: ExperimentConfig,
    counts: Sequence[int],
    use_gpu: bool,
    rounds: int,
    seconds: float,
    ray_folder: Path,
    folders: Sequence[str],
    tell: Callable[[ScalingTurn], None],
) -> tuple[list[ScalingTurn], dict[str, Any]]:
    """Start the workers on the Ray that this process is connected to, and let them take all turns.

    Args:
        counts: numbers of workers; the largest is how many are started.
        seconds: about how long the timed steps of a turn take.
        ray_folder: where Ray Train writes; all nodes share it.
        folders: of the user's own code, where the workers have them, too.

    Returns:
        The turns of all rounds, without those for warming up; and the stamp of what they were measured on.

    Raises:
        RunFailed: the workers failed.
    """
    from queue import Empty

    from ray.util.queue import Queue

    from paceline.cluster.fitting import Fitting, first_line
    from paceline.errors import RunFailed

    queue = Queue(actor_options={"num_cpus": 0})
    order = {
        "settings": {text_of(key): each.model_dump_json() for key, each in settings(config, counts).items()},
        "rounds": rounds,
        "seconds": seconds,
        "queue": queue,
        "folders": folders,
    }
    fitting = Fitting(_trainer(config, max(counts), use_gpu, order, ray_folder))
    fitting.start()
    turns: list[ScalingTurn] = []
    while True:
        was_alive = fitting.is_alive()
        try:
            told = queue.get(timeout=1.0)
        except Empty:
            if not was_alive:
                reason = first_line(fitting.error) if fitting.error else "the workers ended without a result"
                raise RunFailed(reason, str(fitting.error or "")) from None
            continue
        if "stamp" in told:
            fitting.join(5.0)
            total = {"measured_steps": sum(each.steps for each in turns)}
            total |= {"measured_seconds": sum(each.seconds for each in turns)}
            return turns, {**told["stamp"], **total}
        turn = ScalingTurn(**told)
        tell(turn)
        turns += [turn] if turn.round else []


def _trainer(config: ExperimentConfig, workers: int, use_gpu: bool, order: dict[str, Any], folder: Path) -> Any:
    import os
    import sys
    import time

    import ray
    from ray.train import FailureConfig, LoggingConfig, RunConfig

    from paceline.cluster.lean import LeanTorchTrainer
    from paceline.cluster.network import torch_config
    from paceline.cluster.on_ray import ray_scaling
    from paceline.cluster.session import is_private

    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    # the nodes have Paceline, by the job's runtime environment, but not the folder of this file on their path
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    trainer = LeanTorchTrainer(
        serve,
        train_loop_config=order,
        torch_config=torch_config(use_gpu, config.parallel.timeout_seconds, is_private()),
        scaling_config=ray_scaling(config.with_overrides({"scaling.num_workers": workers}), use_gpu),
        run_config=RunConfig(
            name=f"scaling-{time.time_ns()}",
            storage_path=str(folder),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=3),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    trainer.private = is_private()
    return trainer


def text_of(key: Key) -> str:
    """A kind of turn as JSON's keys can be."""
    return f"{key[0]} {key[1]}"


def _key(text: str) -> Key:
    mode, _, count = text.partition(" ")
    return mode, int(count)


def schedule(
    keys: Sequence[Key], rounds: int, seconds: float, log_every: int, step_seconds: Mapping[Key, float]
) -> Iterator[tuple[int, Key, int]]:
    """All turns as round, kind and number of steps: each kind once to warm up, then in a new random order each round.

    Args:
        step_seconds: by kind, to be filled in before the second round is asked for.
    """
    warm_up = round_up(WARM_UP_STEPS, log_every)
    for key in keys:
        yield 0, key, warm_up + round_up(WARM_UP_STEPS, log_every)
    draw = random.Random(0)
    for number in range(1, rounds + 1):
        for key in draw.sample(list(keys), len(keys)):
            yield number, key, warm_up + round_up(seconds / step_seconds[key], log_every)


def round_up(steps: float, log_every: int) -> int:
    """To whole intervals between logs, since time is taken when the device has been waited for."""
    return log_every * max(1, math.ceil(steps / log_every))


def timed(points: Sequence[tuple[int, Mapping[str, float]]]) -> Spent:
    """Steps and seconds of a turn after its warm-up, from the metrics that it has logged."""
    steps, seconds, before = 0, 0.0, 0
    for step, values in points:
        if "step_seconds" not in values:
            continue
        if before >= WARM_UP_STEPS:
            steps += step - before
            seconds += values["step_seconds"] * (step - before)
        before = step
    return steps, seconds


def together(ranks: Sequence[Spent]) -> Spent:
    """Steps, and the seconds in which workers that each train for themselves would all have made them at the mean of
    their speeds."""
    speed = sum(steps / seconds for steps, seconds in ranks) / len(ranks)
    return ranks[0][0], ranks[0][0] / speed


def serve(order: dict[str, Any]) -> None:
    """Ray Train's training function, on each rank."""
    import ray.train.torch

    from paceline.config.imports import make_importable

    make_importable([Path(folder) for folder in order["folders"]])
    take_turns(order, ray.train.torch.get_device(), order["queue"].put)


def take_turns(order: Mapping[str, Any], device: Any, put: Callable[[dict[str, Any]], object]) -> None:
    """All turns of this rank, in the default process group. What a turn does not need waits for its end.

    Args:
        put: told of each turn on rank 0, and of the stamp at the end.
    """
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    from paceline.config.loading import validate
    from paceline.engine.fresh import ProcessState

    place = Place(_get_default_store(), str(dist.get_backend_config()), dist.get_rank(), device)
    configs = {_key(text): validate(json.loads(tree)) for text, tree in order["settings"].items()}
    log_every = next(iter(configs.values())).trainer.log_every_n_steps
    step_seconds: dict[Key, float] = {}
    planned = schedule(list(configs), order["rounds"], order["seconds"], log_every, step_seconds)
    stamp: dict[str, Any] = {}
    state = ProcessState()
    for number in range(1_000_000):
        name = f"turn/{number}"
        if place.rank == 0:
            place.store.set(name, json.dumps(next(planned, None)))
        told = json.loads(_listen(place.store, name))
        if told is None:
            break
        round_number, (mode, workers), steps = told
        if place.rank >= workers:
            continue
        config = configs[mode, workers].with_overrides({"trainer.max_steps": steps})
        spent, own_stamp = _take(place, name, mode, workers, config)
        state.restore()
        if place.rank == 0:
            batch = config.data.global_batch_size * (workers if mode == APART else 1)
            turn = ScalingTurn(mode, workers, batch, *spent, round_number)
            step_seconds[mode, workers] = turn.step_seconds
            stamp = own_stamp if own_stamp.get("workers", 0) >= stamp.get("workers", 0) else stamp
            put(asdict(turn))
    if place.rank == 0:
        put({"stamp": stamp})


class Place(NamedTuple):
    """Where this process stands among the workers."""

    store: Any
    """What they tell each other through."""
    backend: str
    rank: int
    device: Any


def _take(place: Place, name: str, mode: str, workers: int, config: ExperimentConfig) -> tuple[Spent, dict[str, Any]]:
    """One turn: timed steps and seconds, of all that take part, on rank 0; and the stamp."""
    from paceline.engine.fresh import fresh_process_group

    group = (f"{name}/{place.rank}", 0, 1) if mode == APART else (name, place.rank, workers)
    with fresh_process_group(place.store, *group, place.backend, config.parallel.timeout_seconds):
        points, stamp = _train(config, place.device)
    if mode != APART:
        return timed(points), stamp
    place.store.set(f"{name}/timed/{place.rank}", json.dumps(timed(points)))
    if place.rank:
        return timed(points), stamp
    return together([json.loads(_listen(place.store, f"{name}/timed/{each}")) for each in range(workers)]), stamp


def _train(config: ExperimentConfig, device: Any) -> tuple[list[tuple[int, dict[str, float]]], dict[str, Any]]:
    """A training from its start; what rank 0 logged of it, and its stamp."""
    import torch

    from paceline.cluster.preflight import worker_threads
    from paceline.engine.build import build_trainer
    from paceline.engine.ranks import Ranks
    from paceline.engine.reporter import MemoryReporter

    torch.set_num_threads(worker_threads(config))
    reporter = MemoryReporter()
    build_trainer(config, Ranks.current(device), reporter).fit()
    stamps = [details for kind, details in reporter.events if kind == "stamp"]
    return reporter.points, stamps[-1] if stamps else {}


def _listen(store: Any, place: str) -> bytes:
    import torch.distributed as dist

    while True:
        with suppress(dist.DistStoreError):  # a time-out; a lost connection is another error
            store.wait([place], timedelta(seconds=LISTEN_SECONDS))
            return bytes(store.get(place))
