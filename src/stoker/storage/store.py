"""The Store seam: objects under a URL, and which schemes there are."""

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

SCHEMES = {  # scheme -> the module that knows it, what that imports, and the extra that brings it
    "s3": ("stoker.storage.s3", "boto3", "aws"),
    "gs": ("stoker.storage.gcs", "google-cloud-storage", "gcp"),
}
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST")
PART = 8 << 20  # bytes: a larger file is sent in parts of this size, and goes on with the first that is missing


class StoreError(UserError):
    """The store said no, or nothing: a user's mistake before a run begins, a thing to try again while one goes on."""


class Unreachable(StoreError):
    """It gave no answer that makes sense: another try may go better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Object:
    size: int
    tag: str
    """Changes with the content; `Store.tag` tells what it will be for a file."""
    modified: datetime
    version: str
    """What `Store.read` asks for, to get this content and no other."""
    md5: str | None = None
    """Of the content, in hex, where the store was asked for this one and says it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    objects: dict[str, Object]
    """By key, in the order of the keys."""
    now: datetime
    """The store's own clock: ages are never reckoned with the clock of this machine."""


class Store(Protocol):
    """Objects whose keys are relative to `url`. Every method raises StoreError when the store cannot do it."""

    url: str

    def list(self, prefix: str = "") -> Listing:
        """All objects whose keys begin with the prefix."""

    def look(self, key: str) -> Object | None:
        """One object, for those who may read it and not list; None when there is no such object."""

    def folders(self) -> Sequence[str]:
        """The first parts of all keys that have more than one."""

    def get(self, key: str) -> bytes | None:
        """None when there is no such object."""

    def download(self, key: str, path: Path) -> None:
        """Into a file that is whole as soon as it is there."""

    def read(self, key: str, start: int, version: str) -> Iterator[bytes]:
        """The bytes from `start` on, of an object that was listed with this version."""

    def put(self, key: str, data: bytes) -> None: ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """False when somebody else's is there; of two who try at once one gets True."""

    def upload(self, key: str, path: Path) -> None:
        """A file that does not change; what an earlier upload of it has sent is not sent again."""

    def unfinished(self, prefix: str) -> Iterable[str]:
        """Keys of uploads that were begun and are neither done nor given up."""

    def abandon(self, key: str) -> None:
        """Give up the unfinished uploads of a key, and what they have sent."""

    def delete(self, keys: Iterable[str]) -> None:
        """Those that are there; in no order."""

    def tag(self, path: Path) -> str:
        """The tag that the file's object has once it is up."""


def open_store(url: str, *, anonymous: bool = False, region: str | None = None) -> Store:
    """The store of s3://bucket/prefix or gs://bucket/prefix. Nothing is asked of it yet.

    `anonymous`: without credentials, as what is public can be read. `region`: of an S3 bucket, if not the user's own.
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


def is_url(word: str) -> bool:
    return "://" in word


def split(url: str) -> tuple[str, str, str]:
    """Scheme, bucket, and prefix without slashes around it."""
    try:
        parts = urlsplit(url)
    except ValueError as e:
        raise UserError(f"{url} is no URL ({e})", remedy="Use s3://BUCKET/PREFIX or gs://BUCKET/PREFIX") from e
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


def address(*words: str) -> str:
    """A folder's name for a URL: the same bucket behind another endpoint is another place."""
    endpoints = [os.environ.get(name, "") for name in ENDPOINTS]
    return hashlib.sha256("\n".join([*words, *endpoints]).encode()).hexdigest()[:16]


def changed(url: str) -> StoreError:
    return StoreError(f"{url} has changed since it was listed", remedy="Begin with what it is now: start with --new")


def part_size(size: int) -> int:
    """S3 takes ten thousand parts and no more."""
    return max(PART, -(-size // (9_000 << 20)) << 20)
