"""An actor of Ray, played in this process: it writes down what it is told, and answers as it was set up to."""

from collections.abc import Callable
from typing import Any

import pytest
import ray


class PlayedActor:
    """`actor.method.remote(...)` answers at once, for `ray.get` as the test's fixture has it."""

    def __init__(self, **answers: Any) -> None:
        self.told: list[tuple[Any, ...]] = []
        """The name of each method that was called, and its arguments."""
        self._answers = answers

    def __getattr__(self, name: str) -> "_Method":
        return _Method(self, name, self._answers.get(name))

    def answers(self, **answers: Any) -> None:
        """Answer these methods so from now on."""
        self._answers |= answers

    def calls(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of a method."""
        return [arguments for told, *arguments in self.told if told == name]  # type: ignore[misc]


class _Method:
    def __init__(self, actor: PlayedActor, name: str, answer: Any) -> None:
        self._actor, self._name, self._answer = actor, name, answer

    def remote(self, *arguments: Any) -> Any:
        self._actor.told.append((self._name, *arguments))
        return self._answer(*arguments) if isinstance(self._answer, Callable) else self._answer  # type: ignore[arg-type]


def answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `ray.get` return what a `PlayedActor` has answered; an error is raised."""

    def get(answer: Any, **_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ray, "get", get)
