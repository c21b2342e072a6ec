"""Datasets of the Hugging Face hub: the files of a repository at one commit.

huggingface_hub gives the endpoint (HF_ENDPOINT) and the token (HF_TOKEN, or a login). Listing and downloading are done
here, because huggingface_hub 2.4 starts a killed download from zero (its partial file has a random name), and sends the
token to whatever host the next page of a listing is on, encrypted or not.
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
from stoker.data.remote.patterns import fixed_prefix, matching
from stoker.data.remote.transfer import FEW_TRIES, MANY_TRIES, Interrupted, RemoteError, with_retries
from stoker.data.remote.web import HttpRefused, ask, body
from stoker.data.sources import SOURCES, SUFFIXES
from stoker.data.sources.stream import COMPRESSIONS
from stoker.spec.errors import UserError

FORM = r"hf://(?:datasets/)?(?P<name>(?!datasets/)[\w.-]+/[\w.-]+)(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
DATA = (".txt", *(suffix for suffix, format in SUFFIXES.items() if format in SOURCES))  # where no file is named
METADATA = ("dataset_infos.json", "dataset_dict.json", "state.json", "dataset_info.json")
MAX_PAGES = 1000  # of a thousand files each


class HubEntry(NamedTuple):
    """A file or folder of a repository."""

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


def find(location: str) -> list[tuple[str, str, int, str]]:
    repository = _repository(location)
    commit = _commit(repository, location)
    base = fixed_prefix(repository.path)
    entries = _entries(repository, commit, base, location)
    names = [name for name in matching(repository.path, entries) if entries[name].size]
    if not has_magic(repository.path) and not any(entry.path == base for entry in entries.values()):
        names = [name for name in names if _is_data(name)]
    if not names:
        raise RemoteError(
            f"{location} has no data files",
            remedy=f"See {constants.ENDPOINT}/datasets/{repository.name}/tree/main, and name a path or a glob of it; "
            f"many have a Parquet copy: hf://datasets/{repository.name}@refs/convert/parquet",
        )
    root = f"hf://datasets/{repository.name}@{commit}/"
    return [(root + entries[name].path, name, entries[name].size, entries[name].tag) for name in names]


def read(url: str, start: int, tag: str) -> Iterator[bytes]:
    del tag  # a commit does not change
    file = _repository(url)
    address = f"{_endpoint()}/datasets/{file.name}/resolve/{file.revision}/{quote(file.path)}"
    try:
        yield from body(address, start, headers=_headers())
    except HttpRefused as e:
        raise _refusal(file, url, e) from e


def _repository(location: str) -> Repository:
    match = re.fullmatch(FORM, location)
    if not match:
        raise UserError(
            f"{location} is not hf://datasets/OWNER/NAME",
            remedy="Write hf://datasets/OWNER/NAME, with a path or a glob after it to use only a part",
        )
    return Repository(
        name=match["name"], revision=unquote(match["revision"] or "main"), path=(match["path"] or "").strip("/")
    )


def _commit(repository: Repository, location: str) -> str:
    answer, _ = _json(f"{repository.api}/revision/{quote(repository.revision, safe='')}", repository, location)
    commit = answer.get("sha") if isinstance(answer, dict) else None
    if not isinstance(commit, str) or not re.fullmatch(r"\w+", commit):
        raise _not_a_hub(location)
    return commit


def _entries(repository: Repository, commit: str, base: str, location: str) -> dict[str, HubEntry]:
    """The files below a folder, by their paths in it; or the file that the path names."""
    if base and not has_magic(repository.path):
        folder, _, name = base.rpartition("/")
        matches = [
            entry for entry in _tree(repository, commit, folder, location, recursive=False) if entry.path == base
        ]
        if matches and matches[0].is_file:
            return {name: matches[0]}
        if not matches:
            raise RemoteError(
                f"the dataset {repository.name} has no {base} ({location})",
                remedy=f"See its files: {constants.ENDPOINT}/datasets/{repository.name}/tree/{repository.revision}",
            )
    files = [entry for entry in _tree(repository, commit, base, location, recursive=True) if entry.is_file]
    return {entry.path.removeprefix(f"{base}/") if base else entry.path: entry for entry in files}


def _tree(repository: Repository, commit: str, folder: str, location: str, *, recursive: bool) -> Iterator[HubEntry]:
    within = f"/{quote(folder, safe='')}" if folder else ""
    url = f"{repository.api}/tree/{commit}{within}?recursive={str(recursive).lower()}"
    for number in count(1):
        page, url = _json(url, repository, location)
        yield from _listed(page, location)
        if not url:
            return
        if number == MAX_PAGES:
            raise RemoteError(f"{location}: the list of its files has no end", remedy="Name a folder or a file of it")


def _listed(page: Any, location: str) -> list[HubEntry]:
    try:
        return [_entry(record) for record in page]
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise _not_a_hub(location) from e


def _entry(record: dict[str, Any]) -> HubEntry:
    """The tag is a hash of the content: SHA-256 for a large file, Git's blob id for a small file."""
    path, size, lfs = str(record["path"]), int(record.get("size") or 0), record.get("lfs")
    return HubEntry(path, record["type"] == "file", size, f"sha256:{lfs['oid']}" if lfs else f"git:{record['oid']}")


def _json(url: str, repository: Repository, location: str) -> tuple[Any, str]:
    """A page, and the URL of the next page."""
    if constants.HF_HUB_OFFLINE:
        raise RemoteError(f"{location} is on the hub, and HF_HUB_OFFLINE is set", remedy="Unset it")

    def once() -> tuple[Any, str]:
        try:
            answer, headers = ask(url, headers=_headers() if same_server(url, constants.ENDPOINT) else {})
        except HttpRefused as e:
            raise _refusal(repository, location, e) from e
        try:
            page = json.loads(answer)
        except (ValueError, RecursionError) as e:
            raise Interrupted("the response is cut short") from e
        link = re.search(r'<([^>]+)>;\s*rel="?next"?', headers.get("Link", ""))
        return page, urljoin(url, link[1]) if link else ""

    return with_retries(once, name=location, tries=MANY_TRIES if "cursor=" in url else FEW_TRIES)


def _endpoint() -> str:
    """The hub's address, checked."""
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
    return file.endswith(DATA) and file not in METADATA


def _not_a_hub(location: str) -> RemoteError:
    return RemoteError(
        f"{constants.ENDPOINT} does not answer as the Hugging Face hub does ({location})", remedy="Check HF_ENDPOINT"
    )


def _refusal(repository: Repository, location: str, refused: HttpRefused) -> RemoteError:
    page = f"{constants.ENDPOINT}/datasets/{repository.name}"
    code = refused.headers.get("X-Error-Code", "")
    if code == "GatedRepo" or refused.status == 403:
        return RemoteError(
            f"no permission for the dataset {repository.name} ({location})",
            remedy=f"Ask for access at {page}, and set HF_TOKEN to a token that has it",
        )
    if code == "RevisionNotFound":
        return RemoteError(
            f"the dataset {repository.name} has no revision '{repository.revision}' ({location})",
            remedy=f"See {page}, or leave @{repository.revision} out",
        )
    if code == "EntryNotFound":
        return RemoteError(f"there is no {location}", remedy=f"See its files: {page}/tree/main")
    if refused.status in (401, 404):
        return RemoteError(
            f"there is no dataset {repository.name} at {constants.ENDPOINT}, or it is private ({location})",
            remedy="Check its name; for a private one set HF_TOKEN",
        )
    return RemoteError(f"{location} cannot be fetched ({refused.status})", remedy=f"See {page}")
