"""Addresses of object stores, such as `s3://bucket/prefix`, and places of the runs in them.

A stored run has a working copy on this machine, below the cache, which may be removed at any time. Nothing here asks
the network or imports pyarrow.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from paceline.errors import ConfigError, Problem
from paceline.places import place_of

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")
S3_OPTIONS = ("endpoint_override", "region", "scheme")
"""Options behind the `?` of an S3 address; pyarrow's names."""
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Variables that name an S3-compatible server; the first one that is set counts."""
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
ANY_REGION = "us-east-1"
"""For servers that know no regions."""
HINT_OF_CREDENTIALS = (
    "leave them out: they are taken from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), from the store's "
    "own configuration files, or from the machine's role"
)
CACHE_VARIABLE = "PACELINE_CACHE"
DEFAULT_CACHE = "~/.cache/paceline"
CHECKPOINTS = "checkpoints"
TRACKING = "tracking"
TRIALS = "trials"
"""Folder of a sweep's trials, each of which is kept as a run is."""
OUTCOME = "outcome.json"
"""In the folder `TRACKING` once training has ended, and only then."""
STATUS = "run.json"
"""Equal to `RunFolder.FILE`, which this room cannot see."""
LAUNCH = "launch"
"""Entry of that file: the launch that has claimed the run last."""
SWEEP_STATUS = "sweep.json"
"""Equal to `SweepFolder.FILE`."""
SWEEP_BEST = "best.yaml"
"""Equal to the name of `SweepFolder.best_config`."""
SWEEP_LOG = "log.jsonl"
"""The sweep's journal of its trials."""
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_SECRET_OPTION = re.compile(r"(?i)key|secret|token|password|credential|sig")


@dataclass(frozen=True)
class StoreAddress:
    """A place in an object store. `/` makes one below it, and `str` is what a person would write."""

    scheme: str
    place: str
    """Bucket and prefix, or what stands for them, without a slash at the end."""
    query: str = ""
    """Options to reach the store, such as `region=eu-central-1`; the same for all places in it."""

    def __truediv__(self, name: str) -> "StoreAddress":
        return replace(self, place=f"{self.place}/{name}")

    def __str__(self) -> str:
        return f"{self.bare}?{self.query}" if self.query else self.bare

    @property
    def bare(self) -> str:
        """The address without its options."""
        return f"{self.scheme}://{self.place}"

    @property
    def bucket(self) -> str:
        """First part of the place."""
        return self.place.partition("/")[0]

    @property
    def parent(self) -> "StoreAddress":
        """The place above it."""
        return replace(self, place=self.place.rpartition("/")[0])

    @property
    def name(self) -> str:
        """Last part of the place."""
        return self.place.rpartition("/")[2]

    @property
    def digest(self) -> str:
        """Tells it from others, as the name of a folder."""
        return sha256(str(self).encode()).hexdigest()[:16]

    @property
    def options(self) -> dict[str, str]:
        """Options to reach the store, by name."""
        return dict(parse_qsl(self.query))

    def pinned(self, environment: Mapping[str, str] = os.environ) -> "StoreAddress":
        """Add the endpoint and the region that the environment names: on other machines it may not."""
        if self.scheme != "s3":
            return self
        options = self.options
        endpoint = options.get("endpoint_override") or _first(environment, ENDPOINTS)
        region = options.get("region") or _first(environment, REGIONS) or (ANY_REGION if endpoint else "")
        scheme, mark, host = endpoint.rstrip("/").partition("://")
        if mark:
            options |= {"scheme": scheme, "endpoint_override": host}
        if region:
            options["region"] = region
        return replace(self, query=urlencode(sorted(options.items()), safe=":/"))


def is_address(text: object) -> bool:
    """Return True if a text names a place in a store rather than a folder."""
    return isinstance(text, str) and _ADDRESS.fullmatch(text) is not None


def parse(text: str, key: str = "storage.path") -> StoreAddress:
    """Read an address.

    Args:
        key: of the config, for the error.

    Raises:
        ConfigError: it is not one, holds credentials, or names a store that cannot be used.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise _wrong(key, "is not an address", "write it as s3://bucket/prefix")
    scheme, (place, _, query) = found[1].lower(), found[2].partition("?")
    has_bucket = bool(place.partition("/")[0])
    place = re.sub("/+", "/", place).strip("/")
    if scheme == "file":
        raise _wrong(key, "is an address, not a folder", f"write the plain path: /{place}")
    if scheme not in SCHEMES:
        raise _wrong(key, f"{scheme}:// is not supported", f"use a folder, or one of {', '.join(SCHEMES)}")
    _refuse_credentials(key, scheme, place, query)
    if not has_bucket:
        raise _wrong(key, "names no bucket", f"write it as {scheme}://bucket/prefix")
    if ".." in place.split("/") or "." in place.split("/"):
        raise _wrong(key, "must not have '.' or '..' in it", "write the whole prefix")
    unknown = [name for name, _ in parse_qsl(query, keep_blank_values=True) if name not in S3_OPTIONS]
    if scheme == "s3" and unknown:
        raise _wrong(key, f"has the option {unknown[0]!r}", f"there are {', '.join(S3_OPTIONS)}")
    return StoreAddress(scheme, place, query)


def cache_folder() -> Path:
    """Return the folder of this machine's working copies.

    Raises:
        EnvironmentFault: the system refuses the name.
    """
    return place_of(os.environ.get(CACHE_VARIABLE, "").strip() or DEFAULT_CACHE)


def home_of(storage: StoreAddress, name: str) -> Path:
    """The folder of this machine's working copies of the runs of a name."""
    return cache_folder() / storage.digest / name


@dataclass(frozen=True)
class RunStore:
    """Place of a run, and the launch that works on it. Plain values, which travel to the workers."""

    storage: str
    """Address of all runs, with how the store is reached, see `StoreAddress.pinned`."""
    name: str
    run_id: str
    shown: str = ""
    """The address as the config has it."""
    launch: str = ""
    """Tells this launch from others: what may be written, and whose working copies may be used."""
    trusted: tuple[str, ...] = ()
    """Launches whose checkpoints count although they did not get into the store: the record here has all their
    metrics."""

    @property
    def home(self) -> StoreAddress:
        """Place of the runs of this name."""
        return parse(self.storage) / self.name

    @property
    def address(self) -> StoreAddress:
        """Place of the run."""
        return self.home / self.run_id

    def trial(self, trial_id: str) -> "RunStore":
        """Return the place of a trial, where this is a sweep's. The lease on the sweep's name is that on its trials."""
        return replace(self, run_id=f"{self.run_id}/{TRIALS}/{trial_id}")

    def shown_address(self) -> StoreAddress:
        """Return the address of the run as a person would write it."""
        return parse(self.shown or self.storage) / self.name / self.run_id

    @property
    def folder(self) -> Path:
        """The run's working copy on this machine."""
        return home_of(parse(self.storage), self.name) / self.run_id


def _refuse_credentials(key: str, scheme: str, place: str, query: str) -> None:
    """`abfss://container@account...` has a container before the `@`, and gs may have `anonymous`."""
    user, mark, _ = place.partition("/")[0].rpartition("@")
    harmless = not mark or (scheme.startswith("abfs") and ":" not in user) or (scheme[0] == "g" and user == "anonymous")
    if not harmless or any(_SECRET_OPTION.search(name) for name, _ in parse_qsl(query, keep_blank_values=True)):
        raise _wrong(key, "has credentials in it", HINT_OF_CREDENTIALS)


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := environment.get(name, "").strip())), "")


def _wrong(key: str, reason: str, hint: str) -> ConfigError:
    return ConfigError([Problem("storage", reason, key, hint=hint)])
