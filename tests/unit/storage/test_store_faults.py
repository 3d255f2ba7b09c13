"""What an error of a store means, whatever buckets and files are called."""

import pytest

from paceline.storage.address import parse
from paceline.storage.store_faults import fault_of, is_final

WHEN = "When writing key '{key}' in bucket 'permission': "


@pytest.mark.parametrize(
    ("text", "code", "final"),
    [
        ("AWS Error NETWORK_CONNECTION during PutObject operation: curlCode: 28", "store-silent", False),
        ("AWS Error ACCESS_DENIED during PutObject operation", "access-denied", True),
        ("AWS Error NO_SUCH_BUCKET during PutObject operation", "no-such-bucket", True),
        ("AWS Error INTERNAL_FAILURE during PutObject operation", "store-error", False),
    ],
)
@pytest.mark.parametrize("key", ["runs/net/1", "runs/authorization-bert/AccessDenied", "runs/timed out/1"])
def test_names_of_files_and_buckets_do_not_count(text: str, code: str, final: bool, key: str) -> None:
    error = OSError(WHEN.format(key=key) + text)
    assert fault_of(parse("s3://permission/runs"), error).code == code
    assert is_final(error) is final
