"""The private names of MLflow that Paceline uses are there, and do what it relies on."""

from collections.abc import Callable

import pytest

from paceline._compat.mlflow import PRIVATE, forget_database, newest_steps
from support.private_names import Contract


def newest_step_of_each_metric() -> None:
    from mlflow.entities import Metric, Run, RunData, RunInfo

    info = RunInfo("a" * 32, "0", "user", "RUNNING", 0, None, "active")
    data = RunData(metrics=[Metric("loss", 0.5, 0, 7), Metric("accuracy", 0.9, 0, 3)])
    assert newest_steps(Run(info, data)) == {"loss": 7, "accuracy": 3}


def tracking_engine_is_dropped() -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    _engine_is_dropped(SqlAlchemyStore)


def registry_engine_is_dropped() -> None:
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

    _engine_is_dropped(SqlAlchemyStore)


class Engine:
    """Stands in for SQLAlchemy's."""

    disposed = 0

    def dispose(self) -> None:
        self.disposed += 1


def _engine_is_dropped(store: type) -> None:
    engine = Engine()
    engines = vars(store)["_engine_map"]
    engines["sqlite:///there.db"] = engine
    forget_database("sqlite:///elsewhere.db")
    assert engines.pop("sqlite:///there.db", None) is engine
    engines["sqlite:///there.db"] = engine
    forget_database("sqlite:///there.db")
    assert "sqlite:///there.db" not in engines
    assert engine.disposed == 1


def tracking_stores_are_forgotten() -> None:
    from mlflow.tracking._tracking_service.utils import _get_store

    first = _get_store("http://127.0.0.1:9")
    assert _get_store("http://127.0.0.1:9") is first
    forget_database("http://127.0.0.1:9")
    assert _get_store("http://127.0.0.1:9") is not first


def registry_stores_are_forgotten() -> None:
    from mlflow.tracking._model_registry.utils import _get_store

    first = _get_store("http://127.0.0.1:9")
    assert _get_store("http://127.0.0.1:9") is first
    forget_database("http://127.0.0.1:9")
    assert _get_store("http://127.0.0.1:9") is not first


def _registry() -> object:
    from mlflow.tracking._model_registry import utils

    return utils._get_store_registry()


BEHAVIOUR: dict[str, Callable[[], None]] = {
    "mlflow.entities.RunData._metric_objs": newest_step_of_each_metric,
    "mlflow.store.tracking.sqlalchemy_store.SqlAlchemyStore._engine_map": tracking_engine_is_dropped,
    "mlflow.store.model_registry.sqlalchemy_store.SqlAlchemyStore._engine_map": registry_engine_is_dropped,
    "mlflow.tracking._tracking_service.utils._tracking_store_registry._get_store_with_resolved_uri.cache_clear": (
        tracking_stores_are_forgotten
    ),
    "mlflow.tracking._model_registry.utils._get_store_registry._get_store_with_resolved_uri": (
        registry_stores_are_forgotten
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


@pytest.mark.parametrize("name", CONTRACT.names)
def test_private_name(name: str) -> None:
    CONTRACT.check(name)


def test_every_behaviour_belongs_to_a_name() -> None:
    assert CONTRACT.behaviour.keys() <= set(CONTRACT.names)


@pytest.mark.parametrize(
    "name",
    [
        "mlflow.store.tracking.sqlalchemy_store.SqlAlchemyStore._engine_map",
        "mlflow.tracking._model_registry.utils._get_store_registry",
        "mlflow.tracking._tracking_service.utils._tracking_store_registry",
    ],
)
def test_a_rename_fails_one_case(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CONTRACT.missing() == []
    monkeypatch.delattr(*CONTRACT.owner(name))
    assert CONTRACT.missing() == [name]
