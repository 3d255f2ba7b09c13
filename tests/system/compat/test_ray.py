"""The private names of Ray that Paceline uses are there, and do what it relies on. No cluster is started."""

import gc
import inspect
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import ray
from ray._private import node, worker
from ray.job_submission import JobSubmissionClient
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, MedianStoppingRule, PopulationBasedTraining

from paceline._compat import ray as compat
from support.private_names import Contract, ContractTests
from support.sweeps.tune import tune_controller

OPTIONS = {"time_attr": "epochs", "metric": "loss", "mode": "min"}


def asha() -> Any:
    return AsyncHyperBandScheduler(**OPTIONS, grace_period=1, max_t=9, reduction_factor=3)


def pbt(kind: type = PopulationBasedTraining) -> Any:
    return kind(**OPTIONS, perturbation_interval=2, hyperparam_mutations={"lr": [0.1, 0.2]})


# Behaviour


def uv_hook_is_read_late() -> None:
    from ray._private import ray_constants

    assert "ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV" in inspect.getsource(worker)
    with patch.object(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", True):
        compat.disable_uv_hook()
        assert ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV is False


def a_private_ray_takes_the_loopback_address() -> None:
    from ray._private import ray_constants, services

    given: list[Any] = []

    def init(**options: Any) -> None:
        own = services.resolve_ip_for_localhost("127.0.0.1")
        given.append((own, ray.util.get_node_ip_address(), options))

    before = ray_constants.ENABLE_RAY_CLUSTER
    with patch("ray.init", init), patch.object(worker, "_global_node", None):
        compat.init_private(Path("/folder"), include_dashboard=False)
    options = {"address": "local", "_temp_dir": "/folder", "include_dashboard": False}
    assert given == [("127.0.0.1", "127.0.0.1", options)]
    assert ray_constants.ENABLE_RAY_CLUSTER is before
    source = inspect.getsource(node.Node.__init__)
    assert "node_ip_address = ray.util.get_node_ip_address()" in source, "a node asks for its address elsewhere"


def hidden_options_of_init() -> Any:
    """An object with an attribute for each option that `ray.init` takes out of its keyword arguments."""
    return SimpleNamespace(**dict.fromkeys(re.findall(r'kwargs\.pop\(\s*"(\w+)"', inspect.getsource(ray.init))))


def driver_folders_are_added_unless_there_is_a_working_dir() -> None:
    from ray.job_config import JobConfig

    source = inspect.getsource(worker.connect)
    assert source.count("job_config._runtime_env_has_working_dir(") == 2
    assert source.count("_py_driver_sys_path") == 1
    assert JobConfig()._runtime_env_has_working_dir() is False
    assert compat.job_without_folders()._runtime_env_has_working_dir() is True


def worker_lines_are_handed_over() -> None:
    from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher

    assert f'"{compat.RAY_HANDLER}"' in inspect.getsource(worker.connect)
    given: list[Any] = []
    with compat.worker_output_to(given.append):
        dispatcher.emit({"lines": ["one"]})
    dispatcher.emit({"lines": ["two"]})
    assert given == [{"lines": ["one"]}]


def texts_about_nodes_pass_a_filter() -> None:
    assert "print_to_stdstream(\n" in inspect.getsource(worker.listen_error_messages)
    shown: list[str] = []
    with patch.object(worker, "print_to_stdstream", lambda data, ignore_prefix: shown.extend(data["lines"])):
        with compat.worker_output_to(lambda batch: None, lambda text: text != "unwanted"):
            for text in ("wanted", "unwanted"):
                worker.print_to_stdstream({"lines": [text]}, ignore_prefix=False)
        worker.print_to_stdstream({"lines": ["unwanted"]}, ignore_prefix=False)
    assert shown == ["wanted", "unwanted"]


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


def no_worker_has_no_preemption() -> None:
    assert compat.preemption_info() is None
    info = object()
    context = SimpleNamespace(preemption_context=SimpleNamespace(preemption_info=info))
    with patch("ray.train.v2._internal.execution.context.get_train_context", lambda: context):
        assert compat.preemption_info() is info


def tracebacks_of_workers_go_to_a_logger() -> None:
    from ray.train.v2._internal import util

    assert util.logger.name == compat.TRAINING_ERRORS
    with patch.object(util.logger, "disabled", False), patch.object(util.logger, "handle") as handled:
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            util.construct_user_exception_with_traceback(error)
            assert "Traceback" in handled.call_args[0][0].getMessage()


def train_context_has_a_preemption_context() -> None:
    from ray.train.v2._internal.execution import context

    assert "preemption_context" in inspect.getsource(context.TrainContext)
    no_worker_has_no_preemption()


def trial_named(trial_id: str) -> Mock:
    """One of Tune's trials, as far as PBT looks at it."""
    trial = Mock(trial_id=trial_id, config={"lr": 0.1}, status="RUNNING", is_finished=lambda: False)
    trial.run_metadata.checkpoint_manager.checkpoint_config.num_to_keep = None
    return trial


def exploits_go_through_the_hook() -> None:
    around: list[str] = []

    class Hooked(compat.PBTHooks, PopulationBasedTraining):  # type: ignore[misc]
        def around_exploit(self, exploit: Callable[[], None]) -> None:
            around.append("before")
            exploit()

    scheduler, good, bad = pbt(Hooked), trial_named("good"), trial_named("bad")
    exploited: list[Any] = []
    controller = Mock(search_alg=None, get_trials=lambda: [good, bad])
    for trial in (good, bad):
        scheduler.on_trial_add(controller, trial)
    with patch.object(scheduler, "_exploit", lambda *given: exploited.append(given[-2:])):
        for epochs in (2, 4):
            scheduler.on_trial_result(controller, good, {"epochs": epochs, "loss": 0.1})
            scheduler.on_trial_result(controller, bad, {"epochs": epochs, "loss": 0.9})
    assert len(around) >= 2
    assert exploited == [(bad, good)]


STATE = "ray._private.state.state"
COORDINATORS = "ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator"
COORDINATOR = f"{COORDINATORS}.get_or_create_autoscaling_coordinator"
KUBERAY = "ray.autoscaler._private.kuberay"
TUNE = "ray.tune.execution.tune_controller"
ASHA = "ray.tune.schedulers.AsyncHyperBandScheduler"
PBT = "ray.tune.schedulers.PopulationBasedTraining"
BEHAVIOUR: dict[str, Callable[[], None]] = {
    "ray._private.ray_constants.ENABLE_RAY_CLUSTER": a_private_ray_takes_the_loopback_address,
    "ray._private.ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV": uv_hook_is_read_late,
    "ray._private.ray_logging.global_worker_stdstream_dispatcher": worker_lines_are_handed_over,
    "ray._private.runtime_env.packaging": loggers_are_named_after_modules,
    f"{STATE}.get_cluster_config": takes_no_arguments(f"{STATE}.get_cluster_config"),
    f"{STATE}.get_draining_nodes": takes_no_arguments(f"{STATE}.get_draining_nodes"),
    "ray._private.worker.print_to_stdstream": texts_about_nodes_pass_a_filter,
    COORDINATOR: takes_no_arguments(COORDINATOR),
    f"{KUBERAY}.autoscaling_config._derive_autoscaling_config_from_ray_cr": kuberay_config_is_like_cluster_yaml,
    f"{KUBERAY}.node_provider.KubernetesHttpApiClient": kuberay_client_takes_a_namespace_and_a_path,
    "ray.job_config.JobConfig._runtime_env_has_working_dir": driver_folders_are_added_unless_there_is_a_working_dir,
    "ray.job_submission.JobSubmissionClient._do_request": requests_pass_their_options_on,
    "ray.train.v2._internal.execution.context.get_train_context": train_context_has_a_preemption_context,
    "ray.train.v2._internal.util": tracebacks_of_workers_go_to_a_logger,
    f"{PBT}._checkpoint_or_exploit": exploits_go_through_the_hook,
}
"""What else relies on private names is checked with Ray itself where it is used: Tune's schedulers in
`in_process/sweeps/test_schedulers.py`, callbacks in `unit/cluster/test_torch_trainer.py`, and what travels with a job
in `unit/cluster/test_job_plan.py`."""

SAMPLES: dict[str, Callable[[], Any]] = {
    "ray.init": hidden_options_of_init,
    f"{TUNE}.TrialRunnerWrapper": lambda: tune_controller()._wrapped(),
    f"{TUNE}.TuneController": tune_controller,
    f"{TUNE}.TuneController._actor_manager": lambda: tune_controller()._actor_manager,
    ASHA: asha,
    f"{ASHA}._brackets": lambda: asha()._brackets[0],
    "ray.tune.schedulers.MedianStoppingRule": lambda: MedianStoppingRule(**OPTIONS),
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


def test_ended_trials_are_forgotten_but_for_the_newest() -> None:
    tune = tune_controller()
    trials: list[Any] = [Trial("toy", trial_id=str(number), stub=True) for number in range(200)]
    for trial in trials:
        tune.add_trial(trial)
    for trial in trials[1:]:
        tune._mark_trial_to_checkpoint(trial)
        tune._set_trial_status(trial, Trial.TERMINATED)
    tune._get_trial_checkpoints()
    given = tune.get_trials()  # Tune's callbacks hold this list
    live, started = trials[0], Mock()
    tune._actor_manager._pending_actors_to_attrs[started] = (None, None, None)
    tune._actor_manager._pending_actors_to_enqueued_actor_tasks |= {started: [], Mock(): []}
    kept, gone = trials[-compat.ENDED_TRIALS_KEPT :], list(map(weakref.ref, trials[1 : -compat.ENDED_TRIALS_KEPT]))
    tune._live_trials.difference_update(trials[1:])
    tune._pending_trials_list.clear()  # as when actors were found for them
    del trials, trial
    compat.forget_ended_trials(tune._wrapped())
    gc.collect()
    assert given is tune.get_trials()
    assert given == [live, *kept]
    assert [each().trial_id for each in gone if each() is not None] == []
    assert set(tune._get_trial_checkpoints()) == {trial.trial_id for trial in given}
    assert list(tune._actor_manager._pending_actors_to_enqueued_actor_tasks) == [started]
    assert not tune.is_finished()
    compat.forget_ended_trials(tune._wrapped())
    assert given == [live, *kept], "the last ones stay: Tune reads its files again where it has none"
