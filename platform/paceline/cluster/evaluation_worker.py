"""The body of each process of an evaluation, under Ray Train or in the driver."""

import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from paceline.cluster.evaluation_config import EvaluationRequest
from paceline.cluster.preflight import worker_threads
from paceline.cluster.train_worker import keeping_threads
from paceline.engine.dist_context import DistContext, round_seconds_of
from paceline.engine.evaluation import Evaluation, built_evaluation
from paceline.engine.failure import RankFailed, failing_together
from paceline.engine.fresh import release_memory
from paceline.engine.trial_steps import undisturbed
from paceline.redaction import redact, redact_tree
from paceline.starting_folder import drop_starting_folder
from paceline.storage.address import is_address, parse
from paceline.storage.read_copies import brought
from paceline.storage.remote_folder import RemoteFolder


def evaluate_rank(request: EvaluationRequest, ranks: DistContext) -> dict[str, Any]:
    """Evaluate as one rank: `{"status": "finished", "values": ...}`, or `{"status": "failed", "failure": ...}`.

    The values are the metrics, or of predictions the number of `samples` over all ranks.
    """

    def work() -> dict[str, float]:
        config = request.worker_spec.config()
        torch.set_num_threads(worker_threads(config))
        checkpoint = Path(request.checkpoint)
        if is_address(request.checkpoint):
            round_seconds = round_seconds_of(config.parallel.timeout_seconds)
            checkpoint = ranks.each(lambda: brought(request.checkpoint), round_seconds)
        with built_evaluation(config, ranks, checkpoint, request.sets) as evaluation:
            if request.parts:
                return {"samples": _predict(evaluation, request.parts)}
            return evaluation.evaluate(redact)

    try:
        return {"status": "finished", "values": failing_together(ranks, work)}
    except RankFailed as error:
        # here, where the secrets are known that the user's code may have put into it
        return {"status": "failed", "failure": redact_tree(asdict(error.failure))}


def _predict(evaluation: Evaluation, parts: str) -> int:
    if not is_address(parts):
        return evaluation.predict(Path(parts))
    remote = RemoteFolder(parse(parts).pinned())

    def store(file: Path) -> None:
        remote.upload(file.name, file)
        file.unlink()

    with tempfile.TemporaryDirectory(prefix="paceline-predictions-") as folder:
        return evaluation.predict(Path(folder), store)


def evaluate_on_worker(loop_config: dict[str, Any]) -> None:
    """Ray Train's training function: one call per worker process."""
    import ray
    import ray.train.torch

    drop_starting_folder()
    results = loop_config["results"]
    me = ray.cloudpickle.dumps(ray.get_runtime_context().current_actor)
    with suppress(ray.exceptions.ActorDiedError):  # the driver has gone
        if ray.get(results.enter.remote(me)):
            ranks = DistContext.current(ray.train.torch.get_device())
            ending = evaluate_rank(loop_config["request"], ranks)
            if ranks.is_first or ending["status"] == "failed":
                ray.get(results.finish.remote(ending))


def evaluate_here(request: EvaluationRequest, device: torch.device) -> dict[str, Any]:
    """Evaluate in this process, without Ray. Its random numbers continue as if nothing had been drawn."""
    release_memory()
    with undisturbed(device):
        return keeping_threads(lambda: evaluate_rank(request, DistContext.current(device)))
