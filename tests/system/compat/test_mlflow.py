"""The private names of MLflow that Paceline uses are there, and do what it relies on."""

from collections.abc import Callable
from importlib import import_module
from unittest.mock import Mock

from paceline._compat.mlflow import PRIVATE, forget_database, newest_steps
from support.private_names import Contract, ContractTests


def newest_step_of_each_metric() -> None:
    from mlflow.entities import Metric, Run, RunData, RunInfo

    info = RunInfo("a" * 32, "0", "user", "RUNNING", 0, None, "active")
    data = RunData(metrics=[Metric("loss", 0.5, 0, 7), Metric("accuracy", 0.9, 0, 3)])
    assert newest_steps(Run(info, data)) == {"loss": 7, "accuracy": 3}


def engine_is_dropped(package: str) -> Callable[[], None]:
    def check() -> None:
        engines = import_module(f"{package}.sqlalchemy_store").SqlAlchemyStore._engine_map
        engine = engines["sqlite:///there.db"] = Mock()
        forget_database("sqlite:///elsewhere.db")
        assert engines["sqlite:///there.db"] is engine
        forget_database("sqlite:///there.db")
        assert "sqlite:///there.db" not in engines
        engine.dispose.assert_called_once_with()

    return check


def stores_are_forgotten(service: str) -> Callable[[], None]:
    def check() -> None:
        get_store = import_module(f"mlflow.tracking.{service}.utils")._get_store
        first = get_store("http://127.0.0.1:9")
        assert get_store("http://127.0.0.1:9") is first
        forget_database("http://127.0.0.1:9")
        assert get_store("http://127.0.0.1:9") is not first

    return check


def _registry() -> object:
    from mlflow.tracking._model_registry import utils

    return utils._get_store_registry()


TRACKING = "mlflow.store.tracking"
REGISTRY = "mlflow.store.model_registry"
BEHAVIOUR: dict[str, Callable[[], None]] = {
    "mlflow.entities.RunData._metric_objs": newest_step_of_each_metric,
    f"{TRACKING}.sqlalchemy_store.SqlAlchemyStore._engine_map": engine_is_dropped(TRACKING),
    f"{REGISTRY}.sqlalchemy_store.SqlAlchemyStore._engine_map": engine_is_dropped(REGISTRY),
    "mlflow.tracking._tracking_service.utils._tracking_store_registry._get_store_with_resolved_uri.cache_clear": (
        stores_are_forgotten("_tracking_service")
    ),
    "mlflow.tracking._model_registry.utils._get_store_registry._get_store_with_resolved_uri": (
        stores_are_forgotten("_model_registry")
    ),
}


def _data() -> object:
    from mlflow.entities import RunData

    return RunData()


SAMPLES = {
    "mlflow.entities.RunData": _data,
    "mlflow.tracking._model_registry.utils._get_store_registry": _registry,
}
CONTRACT = Contract(PRIVATE, SAMPLES, BEHAVIOUR)


class TestMLflow(ContractTests):
    contract = CONTRACT
    renamed = (
        "mlflow.store.tracking.sqlalchemy_store.SqlAlchemyStore._engine_map",
        "mlflow.tracking._model_registry.utils._get_store_registry",
        "mlflow.tracking._tracking_service.utils._tracking_store_registry",
    )
