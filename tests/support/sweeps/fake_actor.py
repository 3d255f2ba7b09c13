"""A Ray actor in this process: it records its calls, and answers as the test says."""

from collections.abc import Callable
from typing import Any

import pytest
import ray


class FakeActor:
    """`actor.method.remote(...)` answers at once, for `ray.get` as `patch_ray_get` has it.

    Args:
        answers: by method, its answer, or a function that makes it.
    """

    def __init__(self, **answers: Any) -> None:
        self.log: list[tuple[Any, ...]] = []
        """The name of each method that was called, and its arguments."""
        self.answers = answers

    def __getattr__(self, name: str) -> "_Method":
        return _Method(self, name, self.answers.get(name))

    def calls(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of a method."""
        return [arguments for called, *arguments in self.log if called == name]  # type: ignore[misc]


class _Method:
    def __init__(self, actor: FakeActor, name: str, answer: Any) -> None:
        self._actor, self._name, self._answer = actor, name, answer

    def remote(self, *arguments: Any) -> Any:
        self._actor.log.append((self._name, *arguments))
        return self._answer(*arguments) if isinstance(self._answer, Callable) else self._answer  # type: ignore[arg-type]


def patch_ray_get(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `ray.get` return what a `FakeActor` has answered, for which nobody waits; an error is raised."""

    def get(answer: Any, **_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", lambda answers, **_: (answers, []))
