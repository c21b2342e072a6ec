"""Objects in S3 and Google Cloud Storage, read with the same clients as runs in a store."""

from collections.abc import Iterator
from functools import lru_cache
from glob import has_magic

from stoker.data.remote.patterns import fixed_prefix, matching
from stoker.data.remote.transfer import Interrupted, RemoteError
from stoker.storage.store import Object, Store, StoreUnreachable, address, open_store


def find(location: str) -> list[tuple[str, str, int, str]]:
    root, path = _split(location)
    base = fixed_prefix(path)
    objects = _store(f"{root}/{base}").list().objects
    names = [name for name in matching(path, objects) if objects[name].size]
    files = [(f"{root}/{base}/{name}" if base else f"{root}/{name}", name, objects[name]) for name in names]
    if not files and base and not has_magic(path):
        files = _single(root, base)
    if not files:
        raise RemoteError(f"there is no text in {location}", remedy="Check the bucket and the path, or the glob")
    return [(_pinned(object, url), name, object.size, _tag(object, url)) for url, name, object in files]


def read(url: str, start: int, tag: str) -> Iterator[bytes]:
    version = tag.partition(":")[2]
    if url.startswith("gs://"):
        url, _, version = url.rpartition("#")
    root, path = _split(url)
    folder, _, key = path.rpartition("/")
    try:
        yield from _store(f"{root}/{folder}").read(key, start, version)
    except StoreUnreachable as e:
        raise Interrupted(e.problem) from e


def _single(root: str, path: str) -> list[tuple[str, str, Object]]:
    folder, _, key = path.rpartition("/")
    object = _store(f"{root}/{folder}").list(key).objects.get(key)
    return [(f"{root}/{path}", key, object)] if object and object.size else []


def _store(url: str) -> Store:
    return _opened(url, address(url))


@lru_cache(16)
def _opened(url: str, _: str) -> Store:
    """Cached: creating a client takes longer than fetching a small object with it."""
    return open_store(url)


def _split(url: str) -> tuple[str, str]:
    """scheme://bucket, and the path in it."""
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}", path


def _pinned(object: Object, url: str) -> str:
    """Google's notation for a generation of an object; a read from S3 passes the tag instead."""
    return f"{url}#{object.version}" if url.startswith("gs://") else url


def _tag(object: Object, url: str) -> str:
    """Google's tag is the MD5 of the content, except for composite objects."""
    if url.startswith("gs://") and object.tag:
        return f"md5:{object.tag}"
    return f"etag:{object.tag}" if object.tag else f"modified:{object.modified.isoformat()}"
