"""The Store protocol: objects under a URL; and its implementations by scheme."""

import hashlib
import importlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from stoker.spec.errors import MissingExtra, UserError

SCHEMES = {  # scheme -> its module, what that imports, and the extra that installs it
    "s3": ("stoker.storage.s3", "boto3", "aws"),
    "gs": ("stoker.storage.gcs", "google-cloud-storage", "gcp"),
}
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST")
# A larger file is uploaded in parts of this size; an interrupted upload resumes at the first missing part.
PART_BYTES = 8 << 20


class StoreError(UserError):
    """The store refused or did not answer: an error for the user before a run starts, retried while it trains."""


class StoreUnreachable(StoreError):
    """A temporary failure: worth another try."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Object:
    size: int
    tag: str
    """Changes with the content; `Store.tag` computes it for a file."""
    modified: datetime
    version: str
    """Passed to `Store.read` to get exactly this content."""
    md5: str | None = None
    """Of the content, in hex; set by `look`, where the store has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    objects: dict[str, Object]
    """By key, in the order of the keys."""
    now: datetime
    """The store's own clock: ages are never computed with the clock of this machine."""


class Store(Protocol):
    """Objects whose keys are relative to `url`. Every method raises StoreError when the store cannot do it."""

    url: str

    def list(self, prefix: str = "") -> Listing:
        """All objects whose keys begin with the prefix."""

    def look(self, key: str) -> Object | None:
        """One object, for users who may read but not list; None if it does not exist."""

    def folders(self) -> Sequence[str]:
        """The first part of all keys that have several parts."""

    def get(self, key: str) -> bytes | None:
        """The content of an object; None if it does not exist."""

    def download(self, key: str, path: Path) -> None:
        """Downloads to a file, which appears only when it is complete."""

    def read(self, key: str, start: int, version: str) -> Iterator[bytes]:
        """The bytes from `start` on, of an object that was listed with this version."""

    def put(self, key: str, data: bytes) -> None: ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """False if the object exists already; of two concurrent attempts, one gets True."""

    def upload(self, key: str, path: Path) -> None:
        """Uploads a file that does not change, resuming an interrupted upload of it."""

    def unfinished(self, prefix: str) -> Iterable[str]:
        """Keys of uploads that were started and neither completed nor aborted."""

    def abandon(self, key: str) -> None:
        """Aborts the unfinished uploads of a key and discards their parts."""

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects in any order; missing keys are ignored."""

    def tag(self, path: Path) -> str:
        """The tag that the file's object will have once it is uploaded."""


def open_store(url: str, *, anonymous: bool = False, region: str | None = None) -> Store:
    """The store of s3://bucket/prefix or gs://bucket/prefix. No request is sent yet.

    `anonymous`: without credentials, for public buckets. `region`: of an S3 bucket, if it is not the user's default.
    """
    scheme, bucket, prefix = split(url)
    module, package, extra = SCHEMES[scheme]
    try:
        opened: Store = importlib.import_module(module).open_bucket(bucket, prefix, anonymous=anonymous, region=region)
    except ModuleNotFoundError as e:
        if (e.name or "").startswith("stoker"):
            raise
        raise MissingExtra(package, extra) from e
    return opened


def is_url(location: str) -> bool:
    return "://" in location


def split(url: str) -> tuple[str, str, str]:
    """Scheme, bucket, and prefix without slashes around it."""
    try:
        parts = urlsplit(url)
    except ValueError as e:
        raise UserError(f"{url} is not a URL ({e})", remedy="Use s3://BUCKET/PREFIX or gs://BUCKET/PREFIX") from e
    if parts.scheme not in SCHEMES:
        raise UserError(
            f"{url}: Stoker keeps nothing in {parts.scheme}://",
            remedy="Use a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX",
        )
    if "@" in parts.netloc:
        raise UserError(
            f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}: the URL has a user name or password in it",
            remedy="Leave it out, and set the credentials as the cloud's own tools do",
        )
    prefix = parts.path.strip("/")
    if not parts.netloc or "//" in prefix or {".", ".."} & set(prefix.split("/")):
        raise UserError(f"{url} is not {parts.scheme}://BUCKET/PREFIX", remedy="Name the bucket, and a folder in it")
    return parts.scheme, parts.netloc, prefix


def cache() -> Path:
    """Where working copies are kept, private to the user."""
    folder = Path(os.environ.get("STOKER_CACHE") or Path.home() / ".cache" / "stoker")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder.absolute()


def address(*parts: str) -> str:
    """A folder's name for a URL: the same bucket at another endpoint gets another name."""
    endpoints = [os.environ.get(name, "") for name in ENDPOINTS]
    return hashlib.sha256("\n".join([*parts, *endpoints]).encode()).hexdigest()[:16]


def changed(url: str) -> StoreError:
    return StoreError(f"{url} has changed since it was listed", remedy="Start a new run with its new content: --new")


def deleted(url: str) -> StoreError:
    return StoreError(f"{url} was deleted since it was listed", remedy="Run the same command again")


def part_size(size: int) -> int:
    """Large enough for S3's limit of 10,000 parts."""
    return max(PART_BYTES, -(-size // (9_000 << 20)) << 20)
