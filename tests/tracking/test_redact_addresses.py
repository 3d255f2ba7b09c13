"""Passwords in addresses are hidden whatever signs they have, and what looks like one is left."""

import pytest

from paceline.tracking import secret_values
from paceline.tracking.redact import redact, without_credentials

CANARY = "9f2kQz71canary"


@pytest.fixture(autouse=True)
def _nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_values, "_learned", set())


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("at postgresql://me:pa/ss-word9@db/mlflow, again", "at postgresql://***@db/mlflow, again"),
        ("postgresql://me:/pass-word9@db/mlflow?x=1", "postgresql://***@db/mlflow?x=1"),
        ("redis://:12/3-word9@db", "redis://***@db"),
        ("mysql+pymysql://me:p@ss/w?o#rd9@db/mlflow", "mysql+pymysql://***@db/mlflow"),
        ("http://me:pa/ss-word9@host:5000/ml", "http://***@host:5000/ml"),
        ("s3://me:a/b@one/x,s3://me:c/d@two/y", "s3://***@one/x,s3://***@two/y"),
        (r'{"uri": "db://me:a/\"b@h/x", "mail": "a@b.c"}', '{"uri": "db://***@h/x", "mail": "a@b.c"}'),
    ],
)
def test_a_password_in_an_address_may_have_any_signs(text: str, hidden: str) -> None:
    assert redact(text) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "https://host/a@b:c",
        "http://host:5000/a@b, mail me@host.org",
        "see http://host:5000 or me@host.org: it is https://host/@me/x",
        "http://[::1]:5000/a@b",
        '{"uri":"redis://host:6379/0","mail":"a@b.c"}',
        "sqlite:////a:b/c@d/mlflow.db",
        "git+https://host/lib.git@v1:2",
    ],
)
def test_what_is_no_password_of_an_address_is_left(text: str) -> None:
    assert redact(text) == text


def test_an_address_with_any_password_can_be_stored() -> None:
    assert without_credentials("postgresql://me:pa/ss-word9@db/mlflow?x=1") == "postgresql://db/mlflow?x=1"
    assert without_credentials("https://host:5000/a@b:c") == "https://host:5000/a@b:c"


def test_a_password_in_any_variables_address_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE", f"postgresql://me:{CANARY}@host/db")
    assert redact(f"no such user me, {CANARY}") == "no such user me, ***"
    monkeypatch.setenv("DATABASE", "postgresql://me:so%2Fme/thing@host/db")
    assert redact("neither so%2Fme/thing nor so/me/thing") == "neither *** nor ***"
