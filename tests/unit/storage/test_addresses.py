"""Addresses of object stores: parsed, refused, and never shown with a secret."""

import pytest

from paceline.errors import ConfigError
from paceline.storage.address import is_address, parse
from support.golden import Golden

CANARY = "canary-2h8s7d6f"


@pytest.mark.parametrize(
    ("text", "shown", "bucket", "name"),
    [
        ("s3://bucket/runs", "s3://bucket/runs", "bucket", "runs"),
        ("S3://bucket//a//b/", "s3://bucket/a/b", "bucket", "b"),
        ("s3://bucket/runs?region=eu-west-1", "s3://bucket/runs?region=eu-west-1", "bucket", "runs"),
        ("gs://bucket/runs", "gs://bucket/runs", "bucket", "runs"),
        ("gs://anonymous@bucket/runs", "gs://anonymous@bucket/runs", "anonymous@bucket", "runs"),
        (
            "abfss://box@account.dfs.core.windows.net/runs",
            "abfss://box@account.dfs.core.windows.net/runs",
            "box@account.dfs.core.windows.net",
            "runs",
        ),
    ],
)
def test_an_address_is_read(text: str, shown: str, bucket: str, name: str) -> None:
    address = parse(text)
    assert (str(address), address.bucket, address.name) == (shown, bucket, name)
    assert str(address / "mnist" / "id").partition("?")[0].endswith(f"{name}/mnist/id")
    assert (address / "mnist").parent == address
    assert parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        f"s3://AKIA:{CANARY}@bucket/runs",
        f"abfss://:{CANARY}@account.blob.core.windows.net/box",
        f"gs://bucket/runs?access_token={CANARY}",
        f"s3://bucket/runs?secret_key={CANARY}",
        "s3:///runs",
        "s3://",
        "s3://bucket/../other",
        "s3://bucket/runs?regoin=x",
        "ftp://bucket/runs",
        "file:///shared/runs",
    ],
)
def test_an_unusable_address_is_refused_with_a_hint(text: str, golden: Golden) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    (problem,) = caught.value.problems
    assert (problem.code, problem.key) == ("storage", "storage.path")
    assert problem.hint
    assert CANARY not in str(caught.value)
    golden(str(caught.value))


@pytest.mark.parametrize("text", ["runs", "/shared/runs", "./s3:/x", "a:b", "", None, 3])
def test_a_folder_is_no_address(text: object) -> None:
    assert not is_address(text)


@pytest.mark.parametrize(
    ("text", "environment", "options"),
    [
        ("s3://b/r", {}, {}),
        ("s3://b/r", {"AWS_REGION": "eu-west-1"}, {"region": "eu-west-1"}),
        (
            "s3://b/r",
            {"AWS_ENDPOINT_URL": "http://h:9/"},
            {"scheme": "http", "endpoint_override": "h:9", "region": "us-east-1"},
        ),
        (
            "s3://b/r",
            {"AWS_ENDPOINT_URL": "http://h:9", "AWS_ENDPOINT_URL_S3": "https://i:8"},
            {"scheme": "https", "endpoint_override": "i:8", "region": "us-east-1"},
        ),
        (
            "s3://b/r?endpoint_override=own:7&region=x",
            {"AWS_ENDPOINT_URL": "http://h:9", "AWS_REGION": "y"},
            {"endpoint_override": "own:7", "region": "x"},
        ),
        ("gs://b/r", {"AWS_ENDPOINT_URL": "http://h:9"}, {}),
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
