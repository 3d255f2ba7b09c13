"""Everything that a worker process needs to train.

Light to import, since it passes through processes that need neither torch nor the config's schema.
"""

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.redaction import learn
from paceline.storage.address import RunStore

if TYPE_CHECKING:
    from paceline.config.experiment import ExperimentConfig


@dataclass(frozen=True)
class TrialWorkerSpec:
    """The part of a `WorkerSpec` that is a trial's own, in plain values; the rest is the same for all trials."""

    config_json: str
    kept: tuple[str, ...] = ()
    """The sections whose Python object the trial keeps: an axis may put a component or a path in its place."""
    checkpoints: str = ""
    rungs: Mapping[str, Any] | None = None
    store: RunStore | None = None
    """See `WorkerSpec.store`."""


@dataclass(frozen=True)
class WorkerSpec:
    """The work of a training process. Travels to the workers."""

    config_json: str
    objects: Mapping[str, Any] | bytes = field(default_factory=dict)
    """The user's Python objects that stand in the config in place of import paths, by section; pickled to travel,
    since unpickling may need `import_folders`."""
    checkpoints: str = ""
    import_folders: tuple[str, ...] = ()
    rungs: Mapping[str, Any] | None = None
    """Rungs at which a trial of a sweep stops to be compared with the others: the fields of `engine.rungs.Rungs`."""
    store: RunStore | None = None
    """Object store that holds the checkpoints; each machine then has a working copy of its own, in place of
    `checkpoints`."""
    extended_from_step: int | None = None
    """Last step of the finished run that this one trains further; None: it does not."""
    kept: tuple[str, ...] | None = None
    """Sections with `objects` whose object stands in the config; None: all."""

    @classmethod
    def of(cls, config: "ExperimentConfig", address: str | None, **others: Any) -> "WorkerSpec":
        """Return the work that a config describes.

        Args:
            address: of a cluster, to which the user's modules travel, see `user_code`.
            others: further fields.
        """
        from paceline.config.imports import objects_in, user_folders
        from paceline.config.shareable import shareable

        return cls(
            config_json=shareable(config).model_dump_json(),
            objects=objects_in(config.model_dump()),
            import_folders=() if address else user_folders(),
            **others,
        )

    def travelling(self) -> "WorkerSpec":
        """Return a copy with its objects pickled."""
        from ray import cloudpickle

        return replace(self, objects=cloudpickle.dumps(self.objects))

    def for_trial(self, part: TrialWorkerSpec) -> "WorkerSpec":
        """Return the work of one trial of the sweep that this is the base of."""
        return replace(
            self,
            config_json=part.config_json,
            kept=part.kept,
            checkpoints=part.checkpoints,
            rungs=part.rungs,
            store=part.store,
        )

    def config(self) -> "ExperimentConfig":
        """Return the config, validated again where it is used."""
        from paceline.config.components import subtree
        from paceline.config.experiment import validate
        from paceline.config.imports import make_importable
        from paceline.config.shareable import secrets_of

        make_importable([Path(folder) for folder in self.import_folders])
        objects = pickle.loads(self.objects) if isinstance(self.objects, bytes) else self.objects
        tree = json.loads(self.config_json)
        for section, value in objects.items():
            if self.kept is None or section in self.kept:
                subtree(tree, section)["path"] = value
        config = validate(tree)
        learn(secrets_of(config))
        return config
