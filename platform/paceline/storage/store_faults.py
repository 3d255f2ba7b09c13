"""Faults of an object store in words, with the fix."""

import re
from dataclasses import dataclass

from paceline.errors import EnvironmentFault, TrainingError
from paceline.storage.address import StoreAddress


class StoreFault(EnvironmentFault):
    """An object store cannot be used; the message has its address, why, and the hint."""


class LeaseLost(TrainingError):
    """Another machine continues with the run, since this one had not been heard of in the store for too long."""


@dataclass(frozen=True)
class _Kind:
    code: str
    pattern: re.Pattern[str]
    reason: str
    hint: str
    is_final: bool = True
    """True if another attempt is in vain."""


_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what the store's own tools use"
_KINDS = (
    _Kind(
        "no-such-bucket",
        re.compile(r"NO_SUCH_BUCKET|bucket does not exist|ContainerNotFound", re.I),
        "there is no such bucket",
        "make it, or correct storage.path",
    ),
    _Kind(
        "credentials-unknown",
        re.compile(r"INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|SignatureDoesNotMatch|INVALID_CLIENT_TOKEN", re.I),
        "the store does not know these credentials",
        _CREDENTIALS,
    ),
    _Kind(
        "access-denied",
        re.compile(r"ACCESS_DENIED|AccessDenied|HTTP status 40[13]|response code 40[13]|permission|authoriz", re.I),
        "access is denied",
        f"{_CREDENTIALS}; they must allow to list, read, write and delete there",
    ),
    _Kind(
        "store-silent",
        re.compile(r"NETWORK_CONNECTION|curlCode|timed? ?out|could not connect|resolve host", re.I),
        "the store does not answer",
        "see whether its address and the network are right (AWS_ENDPOINT_URL names an S3-compatible server)",
        is_final=False,
    ),
)


_OF_STORE = {*(kind.code for kind in _KINDS), "store-error", "record-behind", "lease-lost", "checkpoint-lost"}


def is_store_code(code: str) -> bool:
    """Return True if training of a stored run that ended with this code has failed because of its store."""
    return code in _OF_STORE


_NAMES = re.compile(r"(?<=[\s(])'[^']*'")
"""Names of buckets and files in an error of pyarrow's: one may be `authorization`."""


def is_final(error: BaseException) -> bool:
    """Return True if another attempt is in vain."""
    kind = _kind_of(str(error))
    return kind is not None and kind.is_final


def _kind_of(text: str) -> _Kind | None:
    text = _NAMES.sub("''", text)
    return next((kind for kind in _KINDS if kind.pattern.search(text)), None)


def fault_of(address: StoreAddress, error: BaseException) -> StoreFault:
    """The fault behind an error of pyarrow's."""
    if isinstance(error, StoreFault):
        return error
    text = " ".join(str(error).split())
    if kind := _kind_of(text):
        message = f"{address.bare} cannot be used: {kind.reason} ({text[:300]}); {kind.hint}"
        return StoreFault(message, kind.code, address=address.bare)
    message = f"{address.bare} cannot be used: {text[:500]}; see whether the store works"
    return StoreFault(message, "store-error", address=address.bare)


def silence(address: StoreAddress, seconds: float) -> StoreFault:
    """The fault of a store that has not answered for so long."""
    kind = _KINDS[-1]
    message = f"{address.bare} cannot be used: {kind.reason} within {seconds:g} s; {kind.hint}"
    return StoreFault(message, kind.code, address=address.bare)
