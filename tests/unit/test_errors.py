"""Errors carry a code and typed fields, and keep them across a process boundary."""

import pickle

from paceline.cluster.separate_process import TookTooLong
from paceline.errors import BAD_CONFIG, BAD_ENVIRONMENT, ConfigError, EnvironmentFault, Problem, text_of


def test_code_and_fields_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(EnvironmentFault("too small", "cluster-too-small", asked=8, available=2)))
    assert (error.message, error.code, error.exit_code) == ("too small", "cluster-too-small", BAD_ENVIRONMENT)
    assert error.fields == {"asked": 8, "available": 2}


def test_an_error_that_takes_other_arguments_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(TookTooLong("building the model", 2.0, "net.py:3", "build")))
    assert (error.code, error.place, error.fields["seconds"]) == ("took-too-long", "net.py:3", 2.0)


def test_the_problems_of_a_config_survive_pickling() -> None:
    problem = Problem("unknown-key", "there is no such key", "trainer.precison", "run.yaml:3:1", "trainer.precision")
    error = pickle.loads(pickle.dumps(ConfigError([problem])))
    assert (error.problems, error.code, error.exit_code) == ((problem,), "unknown-key", BAD_CONFIG)


def test_the_text_of_an_error_ends_with_its_code() -> None:
    fault = EnvironmentFault("too small", "cluster-too-small")
    assert (str(fault), text_of(fault)) == ("too small [cluster-too-small]", "too small")
    first = Problem("unknown-key", "there is no such key", "epochs", "run.yaml:3:1", "trainer.epochs")
    error = ConfigError([first, Problem("missing-key", "is missing", "name")])
    lines = ["run.yaml:3:1: epochs: there is no such key [unknown-key]", "    hint: trainer.epochs"]
    assert str(error).splitlines() == [*lines, "name: is missing [missing-key]"]
    assert text_of(error) == "run.yaml:3:1: epochs: there is no such key (trainer.epochs); name: is missing"
