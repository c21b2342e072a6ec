"""Datasets of the Hugging Face hub: the files of a repository, as they are at one commit.

By the hub's own HTTP paths and our one way to fetch: its client library neither goes on with half a file nor heeds a
Retry-After while it lists. The library still says where the hub is (HF_ENDPOINT) and who we are (HF_TOKEN, or a login).
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from glob import has_magic
from typing import Any
from urllib.parse import quote, unquote

from huggingface_hub import constants, get_token

from stoker.data.remote.keys import fixed_part, meant
from stoker.data.remote.transfer import MANY, Broken, RemoteError, patiently
from stoker.data.remote.web import Refused, ask, body
from stoker.data.sources import SUFFIXES
from stoker.data.sources.stream import COMPRESSIONS
from stoker.spec.errors import UserError

FORM = r"hf://(?:datasets/)?(?P<name>(?!datasets/)[\w.-]+/[\w.-]+)(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
DATA = (*SUFFIXES, ".txt")  # what is not documentation, where no file is named
ABOUT = ("dataset_infos.json", "dataset_dict.json", "state.json", "dataset_info.json")
Entry = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    name: str
    revision: str
    path: str

    @property
    def api(self) -> str:
        return f"{constants.ENDPOINT}/api/datasets/{self.name}"


def find(word: str) -> list[tuple[str, str, int, str]]:
    repository = _repository(word)
    commit = _commit(repository, word)
    base = fixed_part(repository.path)
    entries = _entries(repository, commit, base, word)
    names = [name for name in meant(repository.path, entries) if entries[name]["size"]]
    if not has_magic(repository.path) and not any(entry["path"] == base for entry in entries.values()):
        names = [name for name in names if _is_data(name)]
    if not names:
        raise RemoteError(
            f"{word} has no data files",
            remedy=f"See {constants.ENDPOINT}/datasets/{repository.name}/tree/main, and name a path or a glob of it; "
            f"many have a Parquet copy: hf://datasets/{repository.name}@refs/convert/parquet",
        )
    root = f"hf://datasets/{repository.name}@{commit}/"
    return [(root + entries[name]["path"], name, entries[name]["size"], _tag(entries[name])) for name in names]


def read(url: str, start: int, tag: str) -> Iterator[bytes]:
    del tag  # a commit does not change
    there = _repository(url)
    address = f"{constants.ENDPOINT}/datasets/{there.name}/resolve/{there.revision}/{quote(there.path)}"
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
    commit: str = answer["sha"]
    return commit


def _entries(repository: Repository, commit: str, base: str, word: str) -> dict[str, Entry]:
    """Of the files below a folder, by their paths in it; or the one file that the path names."""
    if base and not has_magic(repository.path):
        folder, _, name = base.rpartition("/")
        there = [entry for entry in _tree(repository, commit, folder, word, recursive=False) if entry["path"] == base]
        if there and there[0]["type"] == "file":
            return {name: there[0]}
        if not there:
            raise RemoteError(
                f"the dataset {repository.name} has no {base} ({word})",
                remedy=f"See what it has: {constants.ENDPOINT}/datasets/{repository.name}/tree/{repository.revision}",
            )
    files = [entry for entry in _tree(repository, commit, base, word, recursive=True) if entry["type"] == "file"]
    return {entry["path"].removeprefix(f"{base}/") if base else entry["path"]: entry for entry in files}


def _tree(repository: Repository, commit: str, folder: str, word: str, *, recursive: bool) -> Iterator[Entry]:
    inside = f"/{quote(folder, safe='')}" if folder else ""
    url = f"{repository.api}/tree/{commit}{inside}?recursive={str(recursive).lower()}"
    while url:
        page, url = _json(url, repository, word)
        yield from page


def _json(url: str, repository: Repository, word: str) -> tuple[Any, str]:
    """An answer, and where the next page of it is."""
    if constants.HF_HUB_OFFLINE:
        raise RemoteError(f"{word} is on the hub, and HF_HUB_OFFLINE is set", remedy="Unset it")

    def once() -> tuple[Any, str]:
        try:
            answer, headers = ask(url, headers=_headers() if url.startswith(constants.ENDPOINT) else {})
        except Refused as e:
            raise _no(repository, word, e) from e
        try:
            page = json.loads(answer)
        except ValueError as e:
            raise Broken("the answer is cut short") from e
        link = re.search(r'<([^>]+)>;\s*rel="?next"?', headers.get("Link", ""))
        return page, link[1] if link else ""

    return patiently(once, name=word, tries=MANY if "cursor=" in url else 4)


def _headers() -> dict[str, str]:
    token = get_token()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _is_data(name: str) -> bool:
    file = name.rpartition("/")[2].lower()
    for ending in COMPRESSIONS:
        file = file.removesuffix(ending)
    return file.endswith(DATA) and file not in ABOUT


def _tag(entry: Entry) -> str:
    """The content's own hash: SHA-256 of a large file, Git's name for a small one."""
    return f"sha256:{entry['lfs']['oid']}" if entry.get("lfs") else f"git:{entry['oid']}"


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
