"""Objects in a Google Cloud Storage bucket. Credentials and endpoint are configured as for Google's client."""

import base64
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google.auth
from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError, NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption
from google.cloud.storage.retry import DEFAULT_RETRY
from requests import RequestException, Response

from stoker.rundir import write_atomic
from stoker.storage.store import (
    PART_BYTES,
    Listing,
    Object,
    StoreError,
    StoreUnreachable,
    address,
    cache,
    changed,
    deleted,
)

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
EMULATOR = "STORAGE_EMULATOR_HOST"
TIMEOUT_S = (5, 60)  # to connect, and between two bytes
RETRY_FOR_S = 15
RETRY = DEFAULT_RETRY.with_timeout(RETRY_FOR_S)
WAITS_S = (0.5, 1.0, 2.0)  # between two tries
CONCURRENT_DELETES = 8
CHUNK_BYTES = 1 << 18
PARTIAL = 206
INCOMPLETE = 308  # the response of a resumable upload until it is complete
GONE = (404, 410)


def open_bucket(bucket: str, prefix: str, *, anonymous: bool = False, region: str | None = None) -> "Gcs":
    del region  # a bucket's name is enough to find it
    return Gcs(bucket, prefix, anonymous=anonymous)


class Gcs:
    def __init__(self, bucket: str, prefix: str, *, anonymous: bool = False) -> None:
        self.url = f"gs://{bucket}/{prefix}".rstrip("/")
        self._name = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        emulator = os.environ.get(EMULATOR)
        with self._store_errors():
            credentials, project = _anonymous() if emulator or anonymous else google.auth.default(scopes=[SCOPE])
            self._bucket: Any = storage.Client(project=project or "stoker", credentials=credentials).bucket(bucket)
        self._http: Any = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
        self._objects = f"{emulator or 'https://storage.googleapis.com'}/storage/v1/b/{quote(bucket)}/o"

    def list(self, prefix: str = "") -> Listing:
        objects: dict[str, Object] = {}
        now = None
        for date, page in self._pages(prefix=self._prefix + prefix):
            now = now or date
            for item in page.get("items", []):
                objects[item["name"].removeprefix(self._prefix)] = Object(
                    size=int(item["size"]),
                    tag=item.get("md5Hash", ""),
                    modified=datetime.fromisoformat(item["updated"]),
                    version=item["generation"],
                )
        assert now is not None
        return Listing(objects=objects, now=now)

    def look(self, key: str) -> Object | None:
        with self._store_errors():
            answer = self._request("GET", f"{self._objects}/{quote(self._prefix + key, safe='')}")
            if answer.status_code in GONE:
                return None
            self._check(answer)
            item = answer.json()
        tag = item.get("md5Hash", "")
        md5 = base64.b64decode(tag).hex() if tag else None
        return Object(
            size=int(item["size"]),
            tag=tag,
            modified=datetime.fromisoformat(item["updated"]),
            version=item["generation"],
            md5=md5,
        )

    def folders(self) -> Sequence[str]:
        pages = self._pages(prefix=self._prefix, delimiter="/")
        prefixes = [prefix for _, page in pages for prefix in page.get("prefixes", [])]
        return [prefix.removeprefix(self._prefix).rstrip("/") for prefix in prefixes]

    def get(self, key: str) -> bytes | None:
        with self._store_errors():
            try:
                data: bytes = self._blob(key).download_as_bytes(timeout=TIMEOUT_S, retry=RETRY)
            except NotFound:
                return None
        return data

    def download(self, key: str, path: Path) -> None:
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with self._store_errors():
                try:
                    self._blob(key).download_to_filename(str(partial), timeout=TIMEOUT_S, retry=RETRY)
                except NotFound as e:
                    raise deleted(f"{self.url}/{key}") from e
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    def read(self, key: str, start: int, version: str) -> Iterator[bytes]:
        """Without the client's own resume, which verifies nothing when it starts in the middle."""
        headers = {"Range": f"bytes={start}-", "Accept-Encoding": "identity"}
        url = f"{self._objects}/{quote(self._prefix + key, safe='')}"
        with self._store_errors():
            answer = self._request(
                "GET", url, params={"alt": "media", "generation": version}, headers=headers, stream=True
            )
            if answer.status_code in GONE:
                raise changed(f"{self.url}/{key}")
            self._check(answer)
            if start and answer.status_code != PARTIAL:
                raise self._unreachable("it answered with all of the object instead of a part")
            yield from answer.iter_content(CHUNK_BYTES)

    def put(self, key: str, data: bytes) -> None:
        with self._store_errors():
            self._blob(key).upload_from_string(data, content_type=_type(key), timeout=TIMEOUT_S, retry=RETRY)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._store_errors():
            try:
                self._blob(key).upload_from_string(
                    data, content_type=_type(key), if_generation_match=0, timeout=TIMEOUT_S, retry=RETRY
                )
            except PreconditionFailed:
                return False
        return True

    def upload(self, key: str, path: Path) -> None:
        if path.stat().st_size <= PART_BYTES:
            self.put(key, path.read_bytes())
            return
        for _ in range(2):  # a session that has expired, or has other bytes than it reported, is restarted
            with self._store_errors(), open(path, "rb") as file:
                if self._send(key, path, file.fileno()):
                    return
        raise self._unreachable(f"{key} was damaged during the upload")

    def unfinished(self, prefix: str) -> Iterable[str]:
        notes = (_read(path) for path in _notes(self.url).glob("*.json"))
        return [note["key"] for note in notes if note and note["key"].startswith(prefix)]

    def abandon(self, key: str) -> None:
        note = _read(self._note(key))
        if note:
            with self._store_errors():
                self._http.delete(note["session"], timeout=TIMEOUT_S)
        self._note(key).unlink(missing_ok=True)

    def delete(self, keys: Iterable[str]) -> None:
        with ThreadPoolExecutor(CONCURRENT_DELETES) as pool:
            list(pool.map(self._delete, keys))

    def _delete(self, key: str) -> None:
        with self._store_errors(), suppress(NotFound):
            self._blob(key).delete(timeout=TIMEOUT_S, retry=RETRY)

    def tag(self, path: Path) -> str:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
        return base64.b64encode(digest.digest()).decode()

    def _send(self, key: str, path: Path, file: int) -> bool:
        """Uses a resumable session; its URL and progress are saved after every part. False: start from scratch."""
        tag, size = self.tag(path), path.stat().st_size
        note = _read(self._note(key))
        if note is None or note["tag"] != tag:
            session = self._blob(key).create_resumable_upload_session(
                content_type=_type(key), size=size, timeout=TIMEOUT_S, retry=RETRY
            )
            note = {"key": key, "tag": tag, "session": session, "sent": 0}
        while True:
            write_atomic(self._note(key), json.dumps(note))
            start = note["sent"]
            data = os.pread(file, min(PART_BYTES, size - start), start)
            answer = self._request(
                "PUT",
                note["session"],
                data=data,
                headers={"Content-Range": f"bytes {start}-{start + len(data) - 1}/{size}"},
            )
            if answer.status_code == INCOMPLETE:
                note["sent"] = int(answer.headers.get("Range", "bytes=0--1").rpartition("=0-")[2]) + 1
                if note["sent"] <= start:
                    write_atomic(self._note(key), json.dumps(note))
                    raise self._unreachable(f"it has kept nothing of {key} after byte {note['sent']}")
                continue
            if not _is_temporary(answer):
                self._note(key).unlink(missing_ok=True)
            if answer.status_code in GONE:
                return False
            self._check(answer)
            return bool(answer.json().get("md5Hash", tag) == tag)

    def _blob(self, key: str) -> Any:
        return self._bucket.blob(self._prefix + key)

    def _note(self, key: str) -> Path:
        return _notes(self.url) / f"{address(key)}.json"

    def _pages(self, **parameters: str) -> Iterator[tuple[datetime, dict[str, Any]]]:
        """Pages of a listing, each with the store's time of the response, which Google's client does not pass on."""
        while True:
            with self._store_errors():
                answer = self._request("GET", self._objects, params=parameters)
                self._check(answer)
                page: dict[str, Any] = answer.json()
            yield parsedate_to_datetime(answer.headers["Date"]), page
            if not page.get("nextPageToken"):
                return
            parameters["pageToken"] = page["nextPageToken"]

    def _request(self, verb: str, url: str, **options: Any) -> Response:
        """Retries temporary failures, but not one that took long, as a read timeout does."""
        deadline = time.monotonic() + RETRY_FOR_S
        for wait in (*WAITS_S, None):
            try:
                answer: Response = self._http.request(verb, url, timeout=TIMEOUT_S, allow_redirects=False, **options)
                if wait is None or time.monotonic() > deadline or not _is_temporary(answer):
                    return answer
            except RequestException:
                if wait is None or time.monotonic() > deadline:
                    raise
            time.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _check(self, answer: Response) -> None:
        if answer.status_code >= 400:
            raise self._refused(answer.status_code, f"{answer.status_code} {answer.reason}")

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        """Converts the client's exceptions to StoreErrors."""
        try:
            yield
        except GoogleAPICallError as e:
            raise self._refused(e.code or 0, e.message) from e
        except DefaultCredentialsError as e:
            raise StoreError(
                f"{self.url}: there are no Google credentials here",
                remedy="Run: gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS",
            ) from e
        except (GoogleAPIError, GoogleAuthError, RequestException, DataCorruption) as e:
            raise self._unreachable(e) from e

    def _refused(self, status: int, reason: str) -> StoreError:
        if status in (401, 403):
            return StoreError(
                f"no permission for {self.url} ({reason})",
                remedy="Give the account the role Storage Object User on the bucket, or use other credentials",
            )
        if status == 404:
            return StoreError(
                f"there is no bucket '{self._name}' ({self.url})",
                remedy=f"Check its name, or make it with: gcloud storage buckets create gs://{self._name}",
            )
        return self._unreachable(reason)

    def _unreachable(self, reason: object) -> StoreUnreachable:
        return StoreUnreachable(
            f"{self.url} cannot be reached ({reason})",
            remedy="Check the network and STORAGE_EMULATOR_HOST, then try again",
        )


def _anonymous() -> tuple[Any, None]:
    """Emulators and public buckets need no credentials."""
    return AnonymousCredentials(), None  # type: ignore[no-untyped-call]


def _is_temporary(answer: Response) -> bool:
    return answer.status_code == 429 or answer.status_code >= 500


def _type(key: str) -> str:
    return "application/json" if key.endswith(".json") else "application/octet-stream"


def _notes(url: str) -> Path:
    folder = cache() / "uploads" / address(url)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _read(path: Path) -> dict[str, Any] | None:
    try:
        note: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return note
