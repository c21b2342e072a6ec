"""A registry, spoken to by the OCI distribution protocol: manifests, blobs, tokens, and patience with both."""

import functools
import hashlib
import json
import re
import ssl
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from stoker import __version__
from stoker.launch.image.credentials import Login, login
from stoker.launch.image.reference import Reference
from stoker.spec.errors import UserError

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFESTS = (OCI_MANIFEST, DOCKER_MANIFEST)
INDEXES = (OCI_INDEX, DOCKER_INDEX)

TRIES = 5
PAUSE_S = 0.25  # doubled after each try
LONGEST_PAUSE_S = 30.0
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
PASSING = (408, 429, 500, 502, 503, 504)
CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class Cut(Exception):
    """A request that came to no answer; to ask again may help."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    content: bytes
    kind: str
    """Its media type."""
    digest: str

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.content)
        return found


class Registry:
    """One host. What a token allows is remembered for each repository."""

    def __init__(self, reference: Reference) -> None:
        self.host = reference.registry
        self._url = reference.url
        self._plain = reference.plain
        self._login: Login | None = None
        self._asked = False
        self._tokens: dict[str, str] = {}
        self._client = httpx.Client(
            timeout=TIMEOUT,
            follow_redirects=True,
            headers={"User-Agent": f"stoker/{__version__}"},
            verify=_certificates(),
        )

    def close(self) -> None:
        self._client.close()

    def manifest(self, repository: str, version: str) -> Manifest | None:
        """By tag or digest; None when there is none."""
        accept = {"Accept": ", ".join((*MANIFESTS, *INDEXES))}
        answer = self.ask("GET", f"{repository}/manifests/{version}", headers=accept, none_on=(404,))
        if answer is None:
            return None
        digest = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
        if version.startswith("sha256:") and version != digest:
            raise self._damaged(f"{repository}@{version}")
        kind = answer.headers.get("content-type", "").partition(";")[0].strip()
        return Manifest(content=answer.content, kind=kind, digest=digest)

    def digest(self, repository: str, tag: str) -> str | None:
        """What a tag points to, without fetching it."""
        accept = {"Accept": ", ".join((*MANIFESTS, *INDEXES))}
        answer = self.ask("HEAD", f"{repository}/manifests/{tag}", headers=accept, none_on=(404,))
        if answer is None:
            return None
        said: str | None = answer.headers.get("docker-content-digest")
        if said is None and (found := self.manifest(repository, tag)):
            return found.digest
        return said

    def put_manifest(self, repository: str, version: str, content: bytes, kind: str) -> None:
        self.ask("PUT", f"{repository}/manifests/{version}", headers={"Content-Type": kind}, content=content, push=True)

    def has_blob(self, repository: str, digest: str) -> bool:
        return self.ask("HEAD", f"{repository}/blobs/{digest}", none_on=(404,), push=True) is not None

    def blob(self, repository: str, digest: str) -> bytes:
        """A small one, whole and checked."""
        answer = self.ask("GET", f"{repository}/blobs/{digest}")
        assert answer is not None
        if f"sha256:{hashlib.sha256(answer.content).hexdigest()}" != digest:
            raise self._damaged(f"{repository}@{digest}")
        return answer.content

    def parts(self, repository: str, digest: str) -> Iterator[bytes]:
        """A blob of any size, piece by piece, as far as it is read; at its end it is checked."""
        hashed = hashlib.sha256()
        for part in self.parts_from(repository, digest, 0):
            hashed.update(part)
            yield part
        if f"sha256:{hashed.hexdigest()}" != digest:
            raise self._damaged(f"{repository}@{digest}")

    def parts_from(self, repository: str, digest: str, start: int) -> Iterator[bytes]:
        """A blob's bytes from `start` on, unchecked; a cut on the way is mended."""
        at, failures = start, 0
        while True:
            try:
                with self._stream(repository, digest, start=at) as pieces:
                    for piece in pieces:
                        at, failures = at + len(piece), 0
                        yield piece
                    return
            except Cut as e:
                failures += 1
                if failures == TRIES:
                    raise self._unreachable(str(e)) from e
                pause(failures)

    @contextmanager
    def _stream(self, repository: str, digest: str, *, start: int) -> Iterator[Iterator[bytes]]:
        """What breaks on the way is a `Cut`."""
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        answer = self.ask("GET", f"{repository}/blobs/{digest}", headers=headers, stream=True)
        assert answer is not None
        try:
            yield _from(answer, start)
        except httpx.TransportError as e:
            raise Cut(_reason(e)) from e
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
    ) -> httpx.Response | None:
        """`path`: below /v2/, beginning with the repository; or a whole URL that the registry gave.

        None for an answer in `none_on`. With `tries=1` a `Cut` is for the caller.
        """
        url = self._encrypted(path) if "://" in path else f"{self._url}/v2/{path}"
        repository = _repository(url)
        scopes = [f"repository:{repository}:{'pull,push' if push else 'pull'}"]
        scopes += [f"repository:{also_from}:pull"] if also_from else []
        request = self._client.build_request(method, url, headers=headers, content=content, params=params)
        for number in range(1, tries + 1):
            try:
                answer = self._once(request, scopes, stream=stream)
            except httpx.TransportError as e:
                if tries == 1:
                    raise Cut(_reason(e)) from e
                if number == tries or isinstance(e, httpx.UnsupportedProtocol) or _is_hopeless(e):
                    raise self._unreachable(_reason(e)) from e
                pause(number)
                continue
            except (httpx.TooManyRedirects, httpx.InvalidURL) as e:
                raise UserError(f"registry {self.host} leads nowhere: {e}", remedy="Ask who runs it") from e
            if answer.status_code in PASSING and tries == 1:
                raise Cut(f"it answered {answer.status_code}")
            if answer.status_code in PASSING and number < tries:
                answer.close()
                pause(number, answer.headers.get("retry-after"))
                continue
            return self._judged(answer, repository, push=push, none_on=none_on)
        raise AssertionError("unreachable")

    def _once(self, request: httpx.Request, scopes: list[str], *, stream: bool) -> httpx.Response:
        key, ours = " ".join(scopes), _may_know_us(request.url, httpx.URL(self._url))
        if ours and key in self._tokens:
            request.headers["Authorization"] = self._tokens[key]
        answer = self._client.send(request, stream=stream)
        if answer.status_code != 401 or not ours:
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
        """A registry behind a proxy that speaks TLS for it may believe that it is spoken to without."""
        given, ours = httpx.URL(url), httpx.URL(self._url)
        if given.scheme == "https" or ours.scheme == "http":
            return url
        if (given.host, given.port) == (ours.host, ours.port):
            return str(given.copy_with(scheme="https"))
        raise UserError(
            f"registry {self.host} sends us on to {given.scheme}://{given.netloc.decode()}, without encryption",
            remedy="Ask who runs it to set the address that it is reached at",
        )

    def _authorization(self, challenge: str, scopes: list[str]) -> str | None:
        """What the registry's challenge asks for, or None when we have nothing to give."""
        if not self._asked:
            self._login, self._asked = login(self.host), True
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            return self._login.basic() if self._login and self._login.user else None
        if kind.lower() != "bearer":
            return None
        said = dict(CHALLENGE.findall(rest))
        realm, service = said.get("realm", ""), said.get("service", "")
        if self._login and not self._plain and not realm.startswith("https://"):
            raise UserError(
                f"registry {self.host} asks for the password at {realm}, without encryption",
                remedy="Do not give it: ask who runs the registry",
            )
        answer = self._token(realm, service, scopes)
        try:
            body = answer.json() if answer.status_code == 200 else {}
        except ValueError:
            return None
        token = body.get("token") or body.get("access_token")
        return f"Bearer {token}" if token else None

    def _token(self, realm: str, service: str, scopes: list[str]) -> httpx.Response:
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

    def _judged(
        self, answer: httpx.Response, repository: str, *, push: bool, none_on: Collection[int]
    ) -> httpx.Response | None:
        if answer.status_code < 400:
            return answer
        answer.read()
        if answer.status_code in none_on:
            return None
        said = _said(answer)
        answer.close()
        doing = "to push to" if push else "to give"
        if answer.status_code in (401, 403):
            raise UserError(
                f"registry {self.host} refuses {doing} {repository}{said}",
                remedy=f"Run: docker login {self.host}, and check that you may {'push to' if push else 'read'} it",
            )
        if answer.status_code == 404:
            raise UserError(
                f"registry {self.host} has no {repository}{said}",
                remedy="Create the repository there first" if push else "Check the name",
            )
        raise UserError(
            f"registry {self.host} answered {answer.status_code} for {repository}{said}",
            remedy="Try again later, or ask who runs it",
        )

    def _unreachable(self, why: str) -> UserError:
        plain = "" if self._plain else f"; a registry without TLS is written http://{self.host}/…"
        return UserError(
            f"registry {self.host} cannot be reached: {why}", remedy=f"Check the name and the network{plain}"
        )

    def _damaged(self, name: str) -> UserError:
        return UserError(
            f"registry {self.host} gave something else than {name}", remedy="Try again, or ask who runs it"
        )


def pause(number: int, said: str | None = None) -> None:
    """Before the next try: as long as the registry said, else longer each time."""
    wanted = float(said) if said and said.isdigit() else PAUSE_S * 2 ** (number - 1)
    time.sleep(min(wanted, LONGEST_PAUSE_S))


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Read once: it takes as long as a push."""
    return httpx.create_ssl_context()


def _from(answer: httpx.Response, start: int) -> Iterator[bytes]:
    """A registry that knows no ranges gives all; what is before `start` is passed over."""
    skip = start if start and answer.status_code == 200 else 0
    for part in answer.iter_raw():
        if skip < len(part):
            yield part[skip:] if skip else part
        skip = max(0, skip - len(part))


def _repository(url: str) -> str:
    path = httpx.URL(url).path.removeprefix("/v2/")
    return re.split(r"/(?:manifests|blobs)/", path)[0]


def _may_know_us(url: httpx.URL, ours: httpx.URL) -> bool:
    """The registry itself, no less encrypted than it was asked for."""
    return (url.host, url.port) == (ours.host, ours.port) and url.scheme in (ours.scheme, "https")


def _is_hopeless(error: httpx.TransportError) -> bool:
    """A name that nobody knows and a certificate that nobody trusts do not change in seconds."""
    text = str(error)
    return isinstance(error.__cause__, ssl.SSLError) or "CERTIFICATE" in text or "Name or service not known" in text


def _reason(error: httpx.TransportError) -> str:
    text = str(error).strip()
    if "WRONG_VERSION_NUMBER" in text or "wrong version number" in text:
        return "it does not speak TLS"
    return text.splitlines()[0] if text else type(error).__name__


def _said(answer: httpx.Response) -> str:
    """The registry's own words, if it has any."""
    try:
        first = answer.json()["errors"][0]
        text = str(first.get("message") or first.get("code") or "")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return ""
    return f": {' '.join(text.split())[:200]}" if text else ""
