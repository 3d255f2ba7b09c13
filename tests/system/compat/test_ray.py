"""The private names of Ray that Paceline uses are there, and do what it relies on. No cluster is started."""

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from ray.job_submission import JobSubmissionClient
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from ray.tune.schedulers import AsyncHyperBandScheduler, MedianStoppingRule, PopulationBasedTraining

from paceline._compat import ray as compat
from support.private_names import Contract, ContractTests


def options(**given: Any) -> dict[str, Any]:
    return {"time_attr": "epochs", "metric": "loss", "mode": "min", **given}


def asha() -> Any:
    return AsyncHyperBandScheduler(**options(grace_period=1, max_t=9, reduction_factor=3))


def pbt(kind: type = PopulationBasedTraining) -> Any:
    return kind(**options(perturbation_interval=2, hyperparam_mutations={"lr": [0.1, 0.2]}))


class Trial:
    """As far as schedulers look at one of Tune's."""

    experiment_tag = ""
    status = "RUNNING"
    run_metadata = SimpleNamespace(
        checkpoint_manager=SimpleNamespace(checkpoint_config=SimpleNamespace(num_to_keep=None))
    )

    def __init__(self, trial_id: str) -> None:
        self.trial_id = trial_id
        self.config = {"lr": 0.1}

    def is_finished(self) -> bool:
        return False


# Behaviour


def uv_hook_is_read_late() -> None:
    from ray._private import ray_constants, worker

    assert "ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV" in inspect.getsource(worker)
    with patch.object(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", True):
        compat.disable_uv_hook()
        assert ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV is False


def worker_lines_are_handed_over() -> None:
    from ray._private import worker
    from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher

    assert f'"{compat.RAY_HANDLER}"' in inspect.getsource(worker.connect)
    given: list[Any] = []
    with compat.worker_output_to(given.append):
        dispatcher.emit({"lines": ["one"]})
    dispatcher.emit({"lines": ["two"]})
    assert given == [{"lines": ["one"]}]


def working_dir_is_walked_as_ray_does() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        for file in ("kept.py", "ignored.bin", "data/large.bin", "sub/kept.py"):
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text("")
        (folder / ".gitignore").write_text("*.bin\n")
        found = {use: _walked(folder, use) for use in (True, False)}
    assert found[True] == {".gitignore", "kept.py", "sub/kept.py"}
    assert found[False] == found[True] | {"ignored.bin"}


def _walked(folder: Path, use_gitignore: bool) -> set[str]:
    taken: list[Path] = []
    logger = logging.getLogger("quiet")
    compat.walk_working_dir(folder, ["data"], taken.append, use_gitignore=use_gitignore, logger=logger)
    return {file.relative_to(folder).as_posix() for file in taken if file.is_file()}


def loggers_are_named_after_modules() -> None:
    from ray._private.runtime_env import packaging

    assert packaging.default_logger.name in compat.CLIENT_LOGGERS


def takes_no_arguments(path: str) -> Callable[[], None]:
    def check() -> None:
        inspect.signature(CONTRACT.find(path)).bind()

    return check


def kuberay_config_is_like_cluster_yaml() -> None:
    from ray.autoscaler._private.kuberay import node_provider

    container = {"resources": {"limits": {"cpu": "6", "memory": "8Gi", "nvidia.com/gpu": "2"}}}
    group = {"template": {"spec": {"containers": [container]}}, "rayStartParams": {}}
    spec = {
        "enableInTreeAutoscaling": True,
        "headGroupSpec": group,
        "workerGroupSpecs": [{**group, "groupName": "gpus", "minReplicas": 0, "maxReplicas": 4}],
    }

    class Client:
        def __init__(self, namespace: str) -> None:
            assert namespace == "training"

        def get(self, path: str) -> object:
            assert path == "rayclusters/mine"
            return {"metadata": {"name": "mine", "namespace": "training"}, "spec": spec}

    with patch.object(node_provider, "KubernetesHttpApiClient", Client):
        config = compat.kuberay_autoscaling_config("mine", "training")
        spec["enableInTreeAutoscaling"] = False
        assert compat.kuberay_autoscaling_config("mine", "training") is None
    assert config is not None
    resources = config["available_node_types"]["gpus"]["resources"]
    assert (resources["CPU"], resources["GPU"]) == (6, 2)
    assert config["available_node_types"]["gpus"]["max_workers"] == 4


def kuberay_client_takes_a_namespace_and_a_path() -> None:
    from ray.autoscaler._private.kuberay.node_provider import KubernetesHttpApiClient

    inspect.signature(KubernetesHttpApiClient).bind(namespace="training")
    inspect.signature(KubernetesHttpApiClient.get).bind(object(), "rayclusters/mine")


def requests_pass_their_options_on() -> None:
    class Client(compat.RequestTimeout, JobSubmissionClient):  # type: ignore[misc]
        timeout = (1.0, 2.0)

        def __init__(self) -> None:
            """Ask nobody."""

    with patch.object(JobSubmissionClient, "_do_request", _returning_options):
        assert Client()._do_request("GET", "/api/jobs", data=b"")["timeout"] == (1.0, 2.0)
    kinds = [each.kind for each in inspect.signature(JobSubmissionClient._do_request).parameters.values()]
    assert inspect.Parameter.VAR_KEYWORD in kinds
    assert "_do_request(" in inspect.getsource(JobSubmissionClient.list_jobs)


def _returning_options(self: Any, method: str, endpoint: str, **options: Any) -> dict[str, Any]:
    return options


def trainer() -> TorchTrainer:
    return TorchTrainer(lambda: None, scaling_config=ScalingConfig(num_workers=1))


def callbacks_are_left_out() -> None:
    class Trainer(compat.CallbackFilter, TorchTrainer):  # type: ignore[misc]
        def unused_callbacks(self) -> set[str]:
            return {compat.DATASETS_CALLBACK}

    stock = list(map(_path, trainer()._create_default_callbacks()))
    own = Trainer(lambda: None, scaling_config=ScalingConfig(num_workers=1))
    assert list(map(_path, own._create_default_callbacks())) == [
        path for path in stock if path != compat.DATASETS_CALLBACK
    ]


def callback_is_a_default(path: str) -> Callable[[], None]:
    def check() -> None:
        assert path in map(_path, trainer()._create_default_callbacks())

    return check


def _path(callback: object) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def no_worker_has_no_preemption() -> None:
    assert compat.preemption_info() is None
    info = object()
    context = SimpleNamespace(preemption_context=SimpleNamespace(preemption_info=info))
    with patch("ray.train.v2._internal.execution.context.get_train_context", lambda: context):
        assert compat.preemption_info() is info


def train_context_has_a_preemption_context() -> None:
    from ray.train.v2._internal.execution import context

    assert "preemption_context" in inspect.getsource(context.TrainContext)
    no_worker_has_no_preemption()


def asha_compares_with_what_was_added() -> None:
    scheduler = asha()
    for number in range(6):
        compat.add_asha_result(scheduler, Trial(f"{number}"), {"epochs": 1, "loss": 0.1 * number})
    compat.rename_asha_trial(scheduler, "0", "renamed")
    first, new = Trial("renamed"), Trial("new")
    for trial in (first, new):
        scheduler.on_trial_add(None, trial)
    bad = {"epochs": 1, "loss": 9.0}
    assert scheduler.on_trial_result(None, new, bad) == scheduler.STOP
    # this trial has passed the rung already
    scheduler = AsyncHyperBandScheduler(**options(grace_period=1, max_t=9, reduction_factor=3, stop_last_trials=False))
    compat.add_asha_result(scheduler, Trial("0"), {"epochs": 1, "loss": 0.1})
    compat.rename_asha_trial(scheduler, "0", "renamed")
    scheduler.on_trial_add(None, first)
    assert scheduler.on_trial_result(None, first, bad) == scheduler.CONTINUE


def median_compares_with_what_was_added() -> None:
    scheduler = MedianStoppingRule(**options(grace_period=1, min_samples_required=2))
    for number in range(3):
        compat.median_results(scheduler)[Trial(f"{number}")].append({"epochs": 3, "loss": 0.1})
    new = Trial("new")
    assert scheduler.on_trial_result(None, new, {"epochs": 3, "loss": 9.0}) == scheduler.STOP


class Hooked(compat.PBTHooks, PopulationBasedTraining):  # type: ignore[misc]
    """Notes what its hooks are called with."""

    around = 0

    def around_exploit(self, exploit: Callable[[], None]) -> None:
        self.around += 1
        exploit()

    def change_config(self, trial: Any, source: Any, config: Any, operations: Any) -> Any:
        return {"lr": 42.0, "source": source.trial_id}, operations


def pbt_calls_its_hooks() -> None:
    scheduler, good, bad = pbt(Hooked), Trial("good"), Trial("bad")
    exploited: list[Any] = []
    controller = SimpleNamespace(
        search_alg=None,
        _schedule_trial_save=lambda trial, result: "checkpoint",
        get_trials=lambda: [good, bad],
    )
    for trial in (good, bad):
        scheduler.on_trial_add(controller, trial)
    with patch.object(scheduler, "_exploit", lambda *given: exploited.append(given[-2:])):
        scheduler.on_trial_result(controller, good, {"epochs": 2, "loss": 0.1})
        scheduler.on_trial_result(controller, bad, {"epochs": 2, "loss": 0.9})
        scheduler.on_trial_result(controller, good, {"epochs": 4, "loss": 0.1})
        scheduler.on_trial_result(controller, bad, {"epochs": 4, "loss": 0.9})
    assert scheduler.around >= 2
    assert exploited == [(bad, good)]


def pbt_takes_the_changed_config() -> None:
    scheduler = pbt(Hooked)
    assert "_get_new_config(" in inspect.getsource(PopulationBasedTraining._exploit)
    config, _ = scheduler._get_new_config(Trial("bad"), Trial("good"))
    assert config == {"lr": 42.0, "source": "good"}


def pbt_continues_from_earlier_results() -> None:
    scheduler, trial = pbt(Hooked), Trial("0")
    scheduler.on_trial_add(SimpleNamespace(search_alg=None), trial)
    scheduler.replay_results(trial, [{"epochs": time, "loss": 1.0 / time} for time in (1, 2, 3, 4)])
    state = scheduler._trial_state[trial]
    assert (state.last_train_time, state.last_perturbation_time, state.last_score) == (4, 4, -0.25)
    scheduler.replay_results(trial, [{"epochs": 2, "loss": 0.1}])  # it took over an earlier state
    assert (state.last_train_time, state.last_perturbation_time, state.last_score) == (2, 2, -0.25)


STATE = "ray._private.state.state"
COORDINATORS = "ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator"
COORDINATOR = f"{COORDINATORS}.get_or_create_autoscaling_coordinator"
KUBERAY = "ray.autoscaler._private.kuberay"
ASHA = "ray.tune.schedulers.AsyncHyperBandScheduler"
PBT = "ray.tune.schedulers.PopulationBasedTraining"
BEHAVIOUR: dict[str, Callable[[], None]] = {
    "ray._private.ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV": uv_hook_is_read_late,
    "ray._private.ray_logging.global_worker_stdstream_dispatcher": worker_lines_are_handed_over,
    "ray._private.runtime_env.packaging": loggers_are_named_after_modules,
    "ray._private.runtime_env.packaging._dir_travel": working_dir_is_walked_as_ray_does,
    f"{STATE}.get_cluster_config": takes_no_arguments(f"{STATE}.get_cluster_config"),
    f"{STATE}.get_draining_nodes": takes_no_arguments(f"{STATE}.get_draining_nodes"),
    COORDINATOR: takes_no_arguments(COORDINATOR),
    f"{KUBERAY}.autoscaling_config._derive_autoscaling_config_from_ray_cr": kuberay_config_is_like_cluster_yaml,
    f"{KUBERAY}.node_provider.KubernetesHttpApiClient": kuberay_client_takes_a_namespace_and_a_path,
    "ray.job_submission.JobSubmissionClient._do_request": requests_pass_their_options_on,
    "ray.train.torch.TorchTrainer._create_default_callbacks": callbacks_are_left_out,
    compat.DATASETS_CALLBACK: callback_is_a_default(compat.DATASETS_CALLBACK),
    compat.CLEANER_CALLBACK: callback_is_a_default(compat.CLEANER_CALLBACK),
    "ray.train.v2._internal.execution.context.get_train_context": train_context_has_a_preemption_context,
    f"{ASHA}._brackets": asha_compares_with_what_was_added,
    "ray.tune.schedulers.MedianStoppingRule._results": median_compares_with_what_was_added,
    f"{PBT}._checkpoint_or_exploit": pbt_calls_its_hooks,
    f"{PBT}._get_new_config": pbt_takes_the_changed_config,
    f"{PBT}._trial_state": pbt_continues_from_earlier_results,
}
SAMPLES: dict[str, Callable[[], Any]] = {
    ASHA: asha,
    f"{ASHA}._brackets": lambda: asha()._brackets[0],
    "ray.tune.schedulers.MedianStoppingRule": lambda: MedianStoppingRule(**options()),
    PBT: pbt,
}
CONTRACT = Contract(compat.PRIVATE, SAMPLES, BEHAVIOUR)


class TestRay(ContractTests):
    contract = CONTRACT
    renamed = (
        "ray._private.runtime_env.packaging._get_excludes",
        "ray.train.torch.TorchTrainer._create_default_callbacks",
        "ray.train.v2._internal.execution.context.get_train_context",
    )
