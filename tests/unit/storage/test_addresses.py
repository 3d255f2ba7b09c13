"""Addresses of object stores: parsed, refused, and never shown with a secret."""

import pytest

from paceline.errors import ConfigError, Problem
from paceline.storage.address import is_address, parse
from support.golden import Golden
from support.refusals import refused

CANARY = "canary-2h8s7d6f"


@pytest.mark.parametrize(
    ("text", "shown", "bucket", "name"),
    [
        ("s3://bucket/runs", "s3://bucket/runs", "bucket", "runs"),
        ("S3://bucket//a//b/", "s3://bucket/a/b", "bucket", "b"),
        ("s3://bucket/runs?region=eu-west-1", "s3://bucket/runs?region=eu-west-1", "bucket", "runs"),
        ("gs://bucket/runs", "gs://bucket/runs", "bucket", "runs"),
        ("gs://anonymous@bucket/runs", "gs://anonymous@bucket/runs", "anonymous@bucket", "runs"),
        ("abfss://box@a.windows.net/runs", "abfss://box@a.windows.net/runs", "box@a.windows.net", "runs"),
    ],
)
def test_an_address_is_read(text: str, shown: str, bucket: str, name: str) -> None:
    address = parse(text)
    assert (str(address), address.bucket, address.name) == (shown, bucket, name)
    assert str(address / "mnist" / "id").partition("?")[0].endswith(f"{name}/mnist/id")
    assert (address / "mnist").parent == address
    assert parse(str(address)) == address


def problem_of(text: str) -> Problem:
    (problem,) = refused(ConfigError, parse, text).problems
    assert (problem.code, problem.key) == ("storage", "storage.path")
    assert problem.hint
    return problem


@pytest.mark.parametrize(
    "text",
    [
        f"s3://AKIA:{CANARY}@bucket/runs",
        f"abfss://:{CANARY}@account.blob.core.windows.net/box",
        f"gs://bucket/runs?access_token={CANARY}",
        f"s3://bucket/runs?secret_key={CANARY}",
    ],
)
def test_an_address_with_credentials_is_refused_without_showing_them(text: str) -> None:
    problem = problem_of(text)
    assert CANARY not in str(problem)
    assert "AWS_SECRET_ACCESS_KEY" in problem.hint


@pytest.mark.parametrize(
    "text", ["s3:///runs", "s3://", "s3://b/../other", "s3://b/r?regoin=x", "ftp://b/r", "file:///shared/runs"]
)
def test_an_unusable_address_is_refused_with_a_hint(text: str, golden: Golden) -> None:
    golden(str(problem_of(text)))


@pytest.mark.parametrize("text", ["runs", "/shared/runs", "./s3:/x", "a:b", "", None, 3])
def test_a_folder_is_no_address(text: object) -> None:
    assert not is_address(text)


ANY = "us-east-1"
SERVER = {"AWS_ENDPOINT_URL": "http://h:9/"}
OTHER = {**SERVER, "AWS_ENDPOINT_URL_S3": "https://i:8"}
OWN = {**SERVER, "AWS_REGION": "y"}


@pytest.mark.parametrize(
    ("text", "environment", "options"),
    [
        ("s3://b/r", {}, {}),
        ("s3://b/r", {"AWS_REGION": "eu-west-1"}, {"region": "eu-west-1"}),
        ("s3://b/r", SERVER, {"scheme": "http", "endpoint_override": "h:9", "region": ANY}),
        ("s3://b/r", OTHER, {"scheme": "https", "endpoint_override": "i:8", "region": ANY}),
        ("s3://b/r?endpoint_override=own:7&region=x", OWN, {"endpoint_override": "own:7", "region": "x"}),
        ("gs://b/r", SERVER, {}),
    ],
)
def test_the_settings_of_the_server_in_the_environment_travel_along(
    text: str, environment: dict[str, str], options: dict[str, str]
) -> None:
    pinned = parse(text).pinned(environment)
    assert pinned.options == options
    assert parse(str(pinned)) == pinned
    assert pinned.pinned({}) == pinned
    assert pinned.bare == parse(text).bare
