"""A client of the OCI distribution protocol: manifests, blobs, tokens, and retries."""

import functools
import hashlib
import json
import re
import socket
import ssl
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from stoker import __version__
from stoker.image.credentials import RegistryLogin, login
from stoker.image.reference import Reference
from stoker.spec.errors import UserError

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFESTS = (OCI_MANIFEST, DOCKER_MANIFEST)
INDEXES = (OCI_INDEX, DOCKER_INDEX)

TRIES = 5
PAUSE_S = 0.25  # doubled after each try
MAX_PAUSE_S = 30.0
TIMEOUT = httpx2.Timeout(60.0, connect=10.0)
TEMPORARY = (408, 429, 500, 502, 503, 504)
CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class ConnectionBroken(Exception):
    """A retry may help."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageManifest:
    content: bytes
    kind: str
    """Its media type."""
    digest: str

    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.content)
        return document


class Registry:
    """One registry. Tokens are cached per repository."""

    def __init__(self, reference: Reference) -> None:
        self.host = reference.registry
        self._url = reference.url
        self._plain = reference.plain
        self._login: RegistryLogin | None = None
        self._asked = False
        self._tokens: dict[str, str] = {}
        self._client = httpx2.Client(
            timeout=TIMEOUT,
            follow_redirects=True,
            headers={"User-Agent": f"stoker/{__version__}"},
            verify=_certificates(),
        )

    def close(self) -> None:
        self._client.close()

    def manifest(self, repository: str, version: str) -> ImageManifest | None:
        """By tag or digest; None if it does not exist."""
        accept = {"Accept": ", ".join((*MANIFESTS, *INDEXES))}
        answer = self.ask("GET", f"{repository}/manifests/{version}", headers=accept, none_on=(404,))
        if answer is None:
            return None
        digest = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
        if version.startswith("sha256:") and version != digest:
            raise self._damaged(f"{repository}@{version}")
        kind = answer.headers.get("content-type", "").partition(";")[0].strip()
        return ImageManifest(content=answer.content, kind=kind, digest=digest)

    def digest(self, repository: str, tag: str) -> str | None:
        """The digest that a tag points to, without fetching the manifest."""
        accept = {"Accept": ", ".join((*MANIFESTS, *INDEXES))}
        answer = self.ask("HEAD", f"{repository}/manifests/{tag}", headers=accept, none_on=(404,))
        if answer is None:
            return None
        digest: str | None = answer.headers.get("docker-content-digest")
        if digest is None and (manifest := self.manifest(repository, tag)):
            return manifest.digest
        return digest

    def put_manifest(self, repository: str, version: str, content: bytes, kind: str) -> None:
        self.ask("PUT", f"{repository}/manifests/{version}", headers={"Content-Type": kind}, content=content, push=True)

    def has_blob(self, repository: str, digest: str) -> bool:
        return self.ask("HEAD", f"{repository}/blobs/{digest}", none_on=(404,), push=True) is not None

    def blob(self, repository: str, digest: str) -> bytes:
        """A small blob, checked."""
        answer = self.ask("GET", f"{repository}/blobs/{digest}")
        assert answer is not None
        if f"sha256:{hashlib.sha256(answer.content).hexdigest()}" != digest:
            raise self._damaged(f"{repository}@{digest}")
        return answer.content

    def parts(self, repository: str, digest: str) -> Iterator[bytes]:
        """Yields a blob in pieces, and checks it at the end."""
        hashed = hashlib.sha256()
        for part in self.parts_from(repository, digest, 0):
            hashed.update(part)
            yield part
        if f"sha256:{hashed.hexdigest()}" != digest:
            raise self._damaged(f"{repository}@{digest}")

    def parts_from(self, repository: str, digest: str, start: int) -> Iterator[bytes]:
        """A blob's bytes from `start` on, unchecked; resumed when the connection breaks."""
        at, failures = start, 0
        while True:
            try:
                with self._stream(repository, digest, start=at) as pieces:
                    for piece in pieces:
                        at, failures = at + len(piece), 0
                        yield piece
                    return
            except ConnectionBroken as e:
                failures += 1
                if failures == TRIES:
                    raise self._unreachable(str(e)) from e
                pause(failures)

    @contextmanager
    def _stream(self, repository: str, digest: str, *, start: int) -> Iterator[Iterator[bytes]]:
        """A broken connection raises `ConnectionBroken`."""
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        none_on = (416,) if start else ()
        answer = self.ask("GET", f"{repository}/blobs/{digest}", headers=headers, stream=True, none_on=none_on)
        if answer is None:  # the connection broke after the last byte
            yield iter(())
            return
        try:
            yield _from(answer, start)
        except httpx2.TransportError as e:
            raise ConnectionBroken(_reason(e)) from e
        finally:
            answer.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        push: bool = False,
        also_from: str | None = None,
        none_on: Collection[int] = (),
        stream: bool = False,
        tries: int = TRIES,
    ) -> httpx2.Response | None:
        """`path`: below /v2/, starting with the repository; or a whole URL from the registry.

        None for a status in `none_on`. With `tries=1`, a `ConnectionBroken` is raised to the caller.
        """
        url = self._encrypted(path) if "://" in path else f"{self._url}/v2/{path}"
        repository = _repository(url)
        scopes = [f"repository:{repository}:{'pull,push' if push else 'pull'}"]
        scopes += [f"repository:{also_from}:pull"] if also_from else []
        request = self._client.build_request(method, url, headers=headers, content=content, params=params)
        for number in range(1, tries + 1):
            try:
                answer = self._once(request, scopes, stream=stream)
            except httpx2.TransportError as e:
                if tries == 1:
                    raise ConnectionBroken(_reason(e)) from e
                if number == tries or isinstance(e, httpx2.UnsupportedProtocol) or _is_permanent(e):
                    raise self._unreachable(_reason(e)) from e
                pause(number)
                continue
            except (httpx2.TooManyRedirects, httpx2.InvalidURL) as e:
                raise UserError(
                    f"registry {self.host} has a broken address: {e}", remedy="Ask its administrator"
                ) from e
            if answer.status_code in TEMPORARY and tries == 1:
                raise ConnectionBroken(f"it answered {answer.status_code}")
            if answer.status_code in TEMPORARY and number < tries:
                answer.close()
                pause(number, answer.headers.get("retry-after"))
                continue
            return self._checked(answer, repository, push=push, none_on=none_on)
        raise AssertionError("unreachable")

    def _once(self, request: httpx2.Request, scopes: list[str], *, stream: bool) -> httpx2.Response:
        key, is_registry = " ".join(scopes), _is_registry(request.url, httpx2.URL(self._url))
        if is_registry and key in self._tokens:
            request.headers["Authorization"] = self._tokens[key]
        answer = self._client.send(request, stream=stream)
        if answer.status_code != 401 or not is_registry:
            return answer
        challenge = answer.headers.get("www-authenticate", "")
        if stream:
            answer.read()
        granted = self._authorization(challenge, scopes)
        if granted is None or granted == request.headers.get("Authorization"):
            return answer
        self._tokens[key] = granted
        request.headers["Authorization"] = granted
        answer.close()
        return self._client.send(request, stream=stream)

    def _encrypted(self, url: str) -> str:
        """A registry behind a TLS proxy may return http:// URLs of itself."""
        location, registry = httpx2.URL(url), httpx2.URL(self._url)
        if location.scheme == "https" or registry.scheme == "http":
            return url
        if (location.host, location.port) == (registry.host, registry.port):
            return str(location.copy_with(scheme="https"))
        raise UserError(
            f"registry {self.host} redirects to {location.scheme}://{location.netloc.decode()}, without encryption",
            remedy="Ask its administrator to set its external address",
        )

    def _authorization(self, challenge: str, scopes: list[str]) -> str | None:
        """The header that answers the registry's challenge; None without credentials."""
        if not self._asked:
            self._login, self._asked = login(self.host), True
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            return self._login.basic() if self._login and self._login.user else None
        if kind.lower() != "bearer":
            return None
        challenge_values = dict(CHALLENGE.findall(rest))
        realm, service = challenge_values.get("realm", ""), challenge_values.get("service", "")
        if self._login and not self._plain and not realm.startswith("https://"):
            raise UserError(
                f"registry {self.host} asks for the password at {realm}, without encryption",
                remedy="Do not send it: ask the registry's administrator",
            )
        answer = self._token(realm, service, scopes)
        try:
            body = answer.json() if answer.status_code == 200 else {}
        except ValueError:
            return None
        token = (body.get("token") or body.get("access_token")) if isinstance(body, dict) else None
        return f"Bearer {token}" if token else None

    def _token(self, realm: str, service: str, scopes: list[str]) -> httpx2.Response:
        if self._login and self._login.identity:
            form = {
                "grant_type": "refresh_token",
                "refresh_token": self._login.identity,
                "service": service,
                "client_id": "stoker",
                "scope": " ".join(scopes),
            }
            return self._client.post(realm, data=form)
        headers = {"Authorization": self._login.basic()} if self._login else {}
        return self._client.get(realm, params={"service": service, "scope": scopes}, headers=headers)

    def _checked(
        self, answer: httpx2.Response, repository: str, *, push: bool, none_on: Collection[int]
    ) -> httpx2.Response | None:
        if answer.status_code < 400:
            return answer
        answer.read()
        if answer.status_code in none_on:
            return None
        message = _message(answer)
        answer.close()
        doing = "to push to" if push else "to give"
        if answer.status_code in (401, 403):
            raise UserError(
                f"registry {self.host} refuses {doing} {repository}{message}",
                remedy=f"Run: docker login {self.host}, and check that you may {'push to' if push else 'read'} it",
            )
        if answer.status_code == 404:
            raise UserError(
                f"registry {self.host} has no {repository}{message}",
                remedy="Create the repository there first" if push else "Check the name",
            )
        raise UserError(
            f"registry {self.host} answered {answer.status_code} for {repository}{message}",
            remedy="Try again later, or ask its administrator",
        )

    def _unreachable(self, why: str) -> UserError:
        plain = "" if self._plain else f"; a registry without TLS is written http://{self.host}/…"
        return UserError(
            f"registry {self.host} cannot be reached: {why}", remedy=f"Check the name and the network{plain}"
        )

    def _damaged(self, name: str) -> UserError:
        return UserError(
            f"registry {self.host} returned other content than {name}", remedy="Try again, or ask its administrator"
        )


def pause(number: int, retry_after: str | None = None) -> None:
    """Waits before the next try: as long as the registry asks, else longer each time."""
    wanted = float(retry_after) if retry_after and retry_after.isdigit() else PAUSE_S * 2 ** (number - 1)
    time.sleep(min(wanted, MAX_PAUSE_S))


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Loaded once: it takes as long as a push."""
    return httpx2.create_ssl_context()


def _from(answer: httpx2.Response, start: int) -> Iterator[bytes]:
    """A registry without range support sends everything; what is before `start` is skipped."""
    skip = start if start and answer.status_code == 200 else 0
    for part in answer.iter_raw():
        if skip < len(part):
            yield part[skip:] if skip else part
        skip = max(0, skip - len(part))


def _repository(url: str) -> str:
    path = httpx2.URL(url).path.removeprefix("/v2/")
    return re.split(r"/(?:manifests|blobs)/", path)[0]


def _is_registry(url: httpx2.URL, registry: httpx2.URL) -> bool:
    """Whether a URL is the registry itself, no less encrypted."""
    return (url.host, url.port) == (registry.host, registry.port) and url.scheme in (registry.scheme, "https")


def _is_permanent(error: httpx2.TransportError) -> bool:
    """An unknown host name or an untrusted certificate does not change in seconds."""
    cause = _root_cause(error)
    unknown_host = isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME
    return unknown_host or isinstance(cause, ssl.SSLCertVerificationError)


def _root_cause(error: BaseException) -> BaseException:
    """The error of the operating system or of TLS that the HTTP library wraps."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return error


def _reason(error: httpx2.TransportError) -> str:
    text, cause = str(error).strip(), _root_cause(error)
    if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
        return "it does not use TLS"
    return text.splitlines()[0] if text else type(error).__name__


def _message(answer: httpx2.Response) -> str:
    """The registry's own message, if any."""
    try:
        first = answer.json()["errors"][0]
        text = str(first.get("message") or first.get("code") or "")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return ""
    return f": {' '.join(text.split())[:200]}" if text else ""
