"""Objects in S3 and Google Cloud Storage, by the stores that also keep runs: no other client is needed for them."""

from collections.abc import Iterator
from functools import lru_cache
from glob import has_magic

from stoker.data.remote.keys import fixed_part, meant
from stoker.data.remote.transfer import Broken, RemoteError
from stoker.storage.store import Object, Store, Unreachable, address, open_store


def find(word: str) -> list[tuple[str, str, int, str]]:
    root, path = _split(word)
    base = fixed_part(path)
    objects = _store(f"{root}/{base}").list().objects
    names = [name for name in meant(path, objects) if objects[name].size]
    found = [(f"{root}/{base}/{name}" if base else f"{root}/{name}", name, objects[name]) for name in names]
    if not found and base and not has_magic(path):
        found = _one(root, base)
    if not found:
        raise RemoteError(f"there is no text in {word}", remedy="Check the bucket and the path, or the glob")
    return [(_exactly(there, url), name, there.size, _tag(there, url)) for url, name, there in found]


def read(url: str, start: int, tag: str) -> Iterator[bytes]:
    version = tag.partition(":")[2]
    if url.startswith("gs://"):
        url, _, version = url.rpartition("#")
    root, path = _split(url)
    folder, _, key = path.rpartition("/")
    try:
        yield from _store(f"{root}/{folder}").read(key, start, version)
    except Unreachable as e:
        raise Broken(e.problem) from e


def _one(root: str, path: str) -> list[tuple[str, str, Object]]:
    folder, _, key = path.rpartition("/")
    there = _store(f"{root}/{folder}").list(key).objects.get(key)
    return [(f"{root}/{path}", key, there)] if there and there.size else []


def _store(url: str) -> Store:
    return _opened(url, address(url))


@lru_cache(16)
def _opened(url: str, _: str) -> Store:
    """To make a client takes longer than to fetch a small object with it."""
    return open_store(url)


def _split(url: str) -> tuple[str, str]:
    """scheme://bucket, and the path in it."""
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}", path


def _exactly(there: Object, url: str) -> str:
    """Google's own form for one generation of an object. In S3 the tag is what a read can ask for."""
    return f"{url}#{there.version}" if url.startswith("gs://") else url


def _tag(there: Object, url: str) -> str:
    """Google's is the MD5 of the content, but for objects that were put together of others."""
    if url.startswith("gs://") and there.tag:
        return f"md5:{there.tag}"
    return f"etag:{there.tag}" if there.tag else f"modified:{there.modified.isoformat()}"
