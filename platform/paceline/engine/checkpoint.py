"""Contents of a checkpoint: the training state and everything registered beside it, saved and restored."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.engine.checkpoint_files import START_FROM_SCRATCH, CheckpointWriter, Snapshot, read_checkpoint
from paceline.engine.dataset_identity import DataRecord
from paceline.engine.dist_context import DistContext, round_seconds_of
from paceline.engine.order import identity_until
from paceline.engine.outcome import CheckpointLost, Diverged
from paceline.engine.sharded_writing import ShardedSnapshot, ShardedWriter
from paceline.engine.state import TrainState
from paceline.engine.stateful import Stateful, pack, unpack
from paceline.errors import ConfigError, Problem

COMPONENTS = "components"
"""Key of the registered components in `state.json`. Their tensors are in `component.<name>.safetensors`."""


class Checkpointer:
    """Every rank has one and calls its methods at the same steps; rank 0's writes.

    Args:
        writer: rank 0's; None on other ranks, and where nothing is saved.
        is_enabled: checkpoints are saved; the same on all ranks.
        data_identity: of the data stream; a checkpoint of other data is refused.
        settled: JSON values that were settled before training and that every checkpoint keeps.
        timeout_seconds: longest time that a collective operation may take.
        data_record: of the samples, on rank 0; a checkpoint of other samples is refused.
        sharded: each rank's, where all of them write together; None: rank 0 writes alone.
    """

    def __init__(
        self,
        state: TrainState,
        ranks: DistContext,
        writer: CheckpointWriter | None,
        is_enabled: bool,
        data_identity: Mapping[str, Any],
        settled: Mapping[str, Any],
        timeout_seconds: float,
        data_record: DataRecord | None = None,
        sharded: ShardedWriter | None = None,
    ) -> None:
        self.writer = writer
        self.is_enabled = is_enabled
        self.resumed_from: Path | None = None
        """Folder of the checkpoint that `load` has restored."""
        self._state = state
        self._ranks = ranks
        self._data_identity = data_identity
        self._settled = {**settled, **(data_record.values() if data_record is not None else {})}
        self._data_record = data_record
        self._sharded = sharded
        self._round_seconds = round_seconds_of(timeout_seconds)
        self._components: dict[str, Stateful] = {}
        self._saved_step = -1

    def register(self, name: str, component: Stateful) -> None:
        """Save a component's state with every checkpoint, and restore it on resume.

        Raises:
            ValueError: the name is taken.
        """
        if name in self._components:
            raise ValueError(f"two components are called {name!r}")
        self._components[name] = component

    @property
    def is_writing(self) -> bool:
        """True while a checkpoint is being written, on rank 0."""
        return self.writer is not None and self.writer.is_writing

    def save(self) -> None:
        """Start writing a checkpoint of the current step, unless there is one.

        Raises:
            Diverged: the weights are not finite.
        """
        step = self._state.position.step
        if not self.is_enabled or step == self._saved_step:
            return
        if not self._state.is_finite(self._ranks):
            message = f"the weights are not finite at step {step}; nothing was saved"
            raise Diverged(message, "weights-not-finite", step=step)
        self.wait()
        snapshot = self._snapshot(step)
        self._saved_step = step
        if self.writer is not None and snapshot is not None:
            self.writer.submit(snapshot)
        elif self._sharded is not None and isinstance(snapshot, ShardedSnapshot):
            self._sharded.submit(snapshot)

    def wait(self) -> None:
        """Wait until no checkpoint is being written."""
        self._ranks.each(self._wait, self._round_seconds)

    def _wait(self) -> None:
        if self.writer is not None:
            self.writer.wait()
        elif self._sharded is not None:
            self._sharded.wait()

    def finish(self) -> None:
        """Training is over: wait for the last checkpoint, and try for a while to store it.

        Raises:
            CheckpointLost: the final state could not be saved.
        """
        writer = self.writer

        def finish() -> None:
            self._wait()
            if writer is not None:
                writer.close()
                writer.put_last()

        self._ranks.each(finish, self._round_seconds)
        step = self._state.position.step
        if writer is not None and (writer.last is None or writer.last.name != f"step-{step}"):
            raise CheckpointLost(
                f"training got to step {step}, but its state could not be saved {writer.complaint(step)}",
                "checkpoint-lost",
                step=step,
                newest=None if writer.last is None else writer.last.name,
            ) from writer.error

    def close(self) -> None:
        """End the writer's thread once it is done; also after an error."""
        if self._sharded is not None:
            self._sharded.close()
        if self.writer is not None:
            self.writer.close()

    def load(self, folder: Path) -> Mapping[str, Any]:
        """Restore the state from a valid checkpoint folder, and return its values that are not tensors.

        Raises:
            ConfigError: the checkpoint belongs to another model, optimizer, other data or another order of samples.
        """
        snapshot = read_checkpoint(folder)
        samples = snapshot.values["position"]["samples"]
        if identity_until(snapshot.values["order"], samples) != identity_until(self._data_identity, samples):
            reason = f"the checkpoint was made with {snapshot.values['order']}, not {dict(self._data_identity)}"
            raise ConfigError([Problem("resume", reason, "data", hint=START_FROM_SCRATCH)])
        if self._data_record is not None:
            self._data_record.require_same(snapshot.values)
        self._state.load(snapshot.tensors, snapshot.values)
        saved = snapshot.values[COMPONENTS]
        for name, component in self._components.items():
            if name in saved:
                component.load_state_dict(self._placed(name, component, saved[name], snapshot))
        self._saved_step = snapshot.step
        self.resumed_from = folder
        if self.writer is not None:
            self.writer.last = folder
        return snapshot.values

    def load_for_evaluation(self, folder: Path, needs_optimizer: bool) -> None:
        """Restore the weights and the registered components, on whatever data.

        Args:
            needs_optimizer: whether the optimizer's state is part of the weights that evaluation uses.

        Raises:
            ConfigError: the checkpoint belongs to another model or optimizer, or has no state of a component.
        """
        snapshot = read_checkpoint(folder)
        load = self._state.load if needs_optimizer else self._state.load_weights
        load(snapshot.tensors, snapshot.values)
        saved = snapshot.values[COMPONENTS]
        for name, component in self._components.items():
            if name not in saved:
                reason = f"{folder.name} has no state of {name}, with which the model would be evaluated"
                hint = "evaluate with the callbacks that the run was trained with, or with callbacks=[]"
                raise ConfigError([Problem("no-callback-state", reason, "callbacks", hint=hint)])
            component.load_state_dict(self._placed(name, component, saved[name], snapshot))

    def _snapshot(self, step: int) -> Snapshot | None:
        layout = self._state.layout
        states = {name: pack(each.state_dict(), name) for name, each in self._components.items()}
        if self.writer is None and not layout.is_spread:
            return None
        parts: dict[str, Mapping[str, Tensor]] = {**self._state.parts()}
        packed = {}
        for name, (component_values, component_tensors) in states.items():
            packed[name] = layout.collect_nested(component_values)
            parts[_file_of(name)] = component_tensors
        values = {**self._state.values(), **self._settled, "order": dict(self._data_identity), COMPONENTS: packed}
        if self._sharded is not None:
            return self._sharded.snapshot(step, parts, values, layout)
        return Snapshot(step, {file: layout.collect(part) for file, part in parts.items()}, values)

    def _placed(self, name: str, component: Stateful, values: Any, snapshot: Snapshot) -> Any:
        """A component's saved state, its tensors in the form that this rank holds them in."""
        whole = snapshot.tensors.get(_file_of(name), {})
        layout = self._state.layout
        if layout.is_spread:
            _, own = pack(component.state_dict(), name)
            whole = {key: layout.place(tensor, own[key]) if key in own else tensor for key, tensor in whole.items()}
        return unpack(values, whole)


def _file_of(name: str) -> str:
    return f"component.{name}"
