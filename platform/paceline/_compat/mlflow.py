"""Private API of MLflow, with the public one that is missing. Imports nothing of MLflow by itself."""

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.entities import Run

PRIVATE = (
    "mlflow.entities.RunData._metric_objs",
    "mlflow.store.model_registry.sqlalchemy_store.SqlAlchemyStore._engine_map",
    "mlflow.store.tracking.sqlalchemy_store.SqlAlchemyStore._engine_map",
    "mlflow.tracking._model_registry.utils._get_store_registry._get_store_with_resolved_uri",
    "mlflow.tracking._tracking_service.utils._tracking_store_registry._get_store_with_resolved_uri.cache_clear",
)
"""Every private name that this file uses: `tests/system/compat/test_mlflow.py` has a case for each."""


def newest_steps(run: "Run") -> dict[str, int] | None:
    """The newest step of each metric of a run.

    `run.data.metrics` has values without steps, and `get_metric_history` is a request per metric. None where
    this version of MLflow does not tell.
    """
    metrics = getattr(run.data, "_metric_objs", None)
    return None if metrics is None else {metric.key: int(metric.step) for metric in metrics}


def forget_database(uri: str) -> None:
    """Close the files of a database, so that the next client opens it again.

    MLflow keeps stores and engines by address while the process lives, also of a file that has been deleted; no public
    call drops them. What a version of MLflow does not keep need not be dropped.
    """
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as RegistryStore
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for store in (SqlAlchemyStore, RegistryStore):
        engine = getattr(store, "_engine_map", {}).pop(uri, None)
        if engine is not None:
            engine.dispose()
    with suppress(ImportError, AttributeError):
        from mlflow.tracking._tracking_service.utils import _tracking_store_registry

        _tracking_store_registry._get_store_with_resolved_uri.cache_clear()
    with suppress(ImportError, AttributeError):
        from mlflow.tracking._model_registry.utils import _get_store_registry

        _get_store_registry()._get_store_with_resolved_uri.cache_clear()
