"""Datasets of the Hugging Face hub: the files of a repository, as they are at one commit.

By the hub's own HTTP paths and our one way to fetch: its client library neither goes on with half a file nor heeds a
Retry-After while it lists. The library still says where the hub is (HF_ENDPOINT) and who we are (HF_TOKEN, or a login).
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from glob import has_magic
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urljoin

from huggingface_hub import constants, get_token

from stoker.data.remote.addresses import check, same_server
from stoker.data.remote.keys import fixed_part, meant
from stoker.data.remote.transfer import FEW, MANY, Broken, RemoteError, patiently
from stoker.data.remote.web import Refused, ask, body
from stoker.data.sources import SOURCES, SUFFIXES
from stoker.data.sources.stream import COMPRESSIONS
from stoker.spec.errors import UserError

FORM = r"hf://(?:datasets/)?(?P<name>(?!datasets/)[\w.-]+/[\w.-]+)(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
DATA = (".txt", *(suffix for suffix, format in SUFFIXES.items() if format in SOURCES))  # where no file is named
ABOUT = ("dataset_infos.json", "dataset_dict.json", "state.json", "dataset_info.json")
MOST_PAGES = 1000  # of a thousand files each


class Entry(NamedTuple):
    """A file or a folder of a repository."""

    path: str
    is_file: bool
    size: int
    tag: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    name: str
    revision: str
    path: str

    @property
    def api(self) -> str:
        return f"{_endpoint()}/api/datasets/{self.name}"


def find(word: str) -> list[tuple[str, str, int, str]]:
    repository = _repository(word)
    commit = _commit(repository, word)
    base = fixed_part(repository.path)
    entries = _entries(repository, commit, base, word)
    names = [name for name in meant(repository.path, entries) if entries[name].size]
    if not has_magic(repository.path) and not any(entry.path == base for entry in entries.values()):
        names = [name for name in names if _is_data(name)]
    if not names:
        raise RemoteError(
            f"{word} has no data files",
            remedy=f"See {constants.ENDPOINT}/datasets/{repository.name}/tree/main, and name a path or a glob of it; "
            f"many have a Parquet copy: hf://datasets/{repository.name}@refs/convert/parquet",
        )
    root = f"hf://datasets/{repository.name}@{commit}/"
    return [(root + entries[name].path, name, entries[name].size, entries[name].tag) for name in names]


def read(url: str, start: int, tag: str) -> Iterator[bytes]:
    del tag  # a commit does not change
    there = _repository(url)
    address = f"{_endpoint()}/datasets/{there.name}/resolve/{there.revision}/{quote(there.path)}"
    try:
        yield from body(address, start, headers=_headers())
    except Refused as e:
        raise _no(there, url, e) from e


def _repository(word: str) -> Repository:
    found = re.fullmatch(FORM, word)
    if not found:
        raise UserError(
            f"{word} is not hf://datasets/OWNER/NAME",
            remedy="Write hf://datasets/OWNER/NAME, and a path or a glob in it where not all of it is meant",
        )
    return Repository(
        name=found["name"], revision=unquote(found["revision"] or "main"), path=(found["path"] or "").strip("/")
    )


def _commit(repository: Repository, word: str) -> str:
    answer, _ = _json(f"{repository.api}/revision/{quote(repository.revision, safe='')}", repository, word)
    commit = answer.get("sha") if isinstance(answer, dict) else None
    if not isinstance(commit, str) or not re.fullmatch(r"\w+", commit):
        raise _no_hub(word)
    return commit


def _entries(repository: Repository, commit: str, base: str, word: str) -> dict[str, Entry]:
    """Of the files below a folder, by their paths in it; or the one file that the path names."""
    if base and not has_magic(repository.path):
        folder, _, name = base.rpartition("/")
        there = [entry for entry in _tree(repository, commit, folder, word, recursive=False) if entry.path == base]
        if there and there[0].is_file:
            return {name: there[0]}
        if not there:
            raise RemoteError(
                f"the dataset {repository.name} has no {base} ({word})",
                remedy=f"See what it has: {constants.ENDPOINT}/datasets/{repository.name}/tree/{repository.revision}",
            )
    files = [entry for entry in _tree(repository, commit, base, word, recursive=True) if entry.is_file]
    return {entry.path.removeprefix(f"{base}/") if base else entry.path: entry for entry in files}


def _tree(repository: Repository, commit: str, folder: str, word: str, *, recursive: bool) -> Iterator[Entry]:
    inside = f"/{quote(folder, safe='')}" if folder else ""
    url = f"{repository.api}/tree/{commit}{inside}?recursive={str(recursive).lower()}"
    for number in count(1):
        page, url = _json(url, repository, word)
        yield from _listed(page, word)
        if not url:
            return
        if number == MOST_PAGES:
            raise RemoteError(f"{word}: the list of its files has no end", remedy="Name a folder or a file of it")


def _listed(page: Any, word: str) -> list[Entry]:
    try:
        return [_entry(record) for record in page]
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise _no_hub(word) from e


def _entry(record: dict[str, Any]) -> Entry:
    """The tag is the content's own hash: SHA-256 of a large file, Git's name for a small one."""
    path, size, lfs = str(record["path"]), int(record.get("size") or 0), record.get("lfs")
    return Entry(path, record["type"] == "file", size, f"sha256:{lfs['oid']}" if lfs else f"git:{record['oid']}")


def _json(url: str, repository: Repository, word: str) -> tuple[Any, str]:
    """An answer, and where the next page of it is."""
    if constants.HF_HUB_OFFLINE:
        raise RemoteError(f"{word} is on the hub, and HF_HUB_OFFLINE is set", remedy="Unset it")

    def once() -> tuple[Any, str]:
        try:
            answer, headers = ask(url, headers=_headers() if same_server(url, constants.ENDPOINT) else {})
        except Refused as e:
            raise _no(repository, word, e) from e
        try:
            page = json.loads(answer)
        except (ValueError, RecursionError) as e:
            raise Broken("the answer is cut short") from e
        link = re.search(r'<([^>]+)>;\s*rel="?next"?', headers.get("Link", ""))
        return page, urljoin(url, link[1]) if link else ""

    return patiently(once, name=word, tries=MANY if "cursor=" in url else FEW)


def _endpoint() -> str:
    """Where the hub is."""
    try:
        check(constants.ENDPOINT)
    except RemoteError as e:
        raise RemoteError(f"HF_ENDPOINT is {e.problem}", remedy="Set it to an https:// address, or unset it") from e
    return constants.ENDPOINT


def _headers() -> dict[str, str]:
    token = get_token()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _is_data(name: str) -> bool:
    file = name.rpartition("/")[2].lower()
    for ending in COMPRESSIONS:
        file = file.removesuffix(ending)
    return file.endswith(DATA) and file not in ABOUT


def _no_hub(word: str) -> RemoteError:
    return RemoteError(
        f"{constants.ENDPOINT} does not answer as the Hugging Face hub does ({word})", remedy="Check HF_ENDPOINT"
    )


def _no(repository: Repository, word: str, refused: Refused) -> RemoteError:
    page = f"{constants.ENDPOINT}/datasets/{repository.name}"
    why = refused.headers.get("X-Error-Code", "")
    if why == "GatedRepo" or refused.status == 403:
        return RemoteError(
            f"no permission for the dataset {repository.name} ({word})",
            remedy=f"Ask for access at {page}, and set HF_TOKEN to a token that has it",
        )
    if why == "RevisionNotFound":
        return RemoteError(
            f"the dataset {repository.name} has no revision '{repository.revision}' ({word})",
            remedy=f"See {page}, or leave @{repository.revision} out",
        )
    if why == "EntryNotFound":
        return RemoteError(f"there is no {word}", remedy=f"See what is there: {page}/tree/main")
    if refused.status in (401, 404):
        return RemoteError(
            f"there is no dataset {repository.name} at {constants.ENDPOINT}, or it is private ({word})",
            remedy="Check its name; for a private one set HF_TOKEN",
        )
    return RemoteError(f"{word} cannot be fetched ({refused.status})", remedy=f"See {page}")
