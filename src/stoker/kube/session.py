"""Requests to an API server that survive temporary failures: expired tokens, restarts, webhooks that are not up yet."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from stoker.kube.errors import Refused, Unreachable, is_certificate_error, refusal, tls_error, unreachable
from stoker.kube.expiry import Expired
from stoker.kube.kinds import Kind

TRIES = 5
CONNECT_TRIES = 3  # where nothing listens
FIRST_PAUSE_S = 0.25  # doubled after each try
UNAUTHORIZED = 401
EXPIRED_ALERTS = {
    "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "TLSV1_ALERT_CERTIFICATE_EXPIRED",
}  # about the client's certificate
TEMPORARY = {429, 502, 503, 504}
WEBHOOK = "failed calling webhook"  # an operator that has just been installed answers some seconds later
STREAM_TIMEOUT = httpx2.Timeout(None, connect=10)


class Session:
    def __init__(
        self, log_in: Callable[[], httpx2.Client], *, name: str, expired: Callable[[], Expired | None] = lambda: None
    ) -> None:
        """`name`: what messages call the cluster. `expired`: called when the server rejects the credentials."""
        self._log_in = log_in
        self.name = name
        self._expired = expired
        self._login_lock = threading.Lock()
        self.client = log_in()

    @property
    def server(self) -> str:
        return str(self.client.base_url).rstrip("/")

    def request(
        self,
        method: str,
        path: str,
        *,
        verb: str,
        kind: Kind,
        name: str = "",
        namespace: str | None = None,
        **more: Any,
    ) -> httpx2.Response:
        """Every request here may be repeated: created objects have a name, and deleting twice is harmless."""
        renewed = False
        for attempt in range(TRIES):
            last = attempt == TRIES - 1
            client = self.client
            try:
                response = client.request(method, path, **more)
            except httpx2.TransportError as e:
                down = isinstance(e, httpx2.ConnectError) and attempt + 1 == CONNECT_TRIES
                if last or down or isinstance(e, httpx2.ConnectTimeout) or is_certificate_error(e):
                    raise self.unreachable(e) from e
            else:
                if response.is_success:
                    return response
                if response.status_code == UNAUTHORIZED and not renewed and not last:
                    self.log_in(rejected=client)
                    renewed = True
                    continue
                if last or not _is_temporary(response):
                    raise self.refused(response, verb=verb, kind=kind, name=name, namespace=namespace)
            time.sleep(FIRST_PAUSE_S * 2**attempt)
        raise AssertionError("the last try returns or raises")

    def log_in(self, *, rejected: httpx2.Client) -> None:
        """Gets new credentials, unless another thread has done so: a login command's token may last for minutes only.

        `rejected`: the client whose credentials the server did not accept.
        """
        with self._login_lock:
            if self.client is rejected:
                self.client = self._log_in()

    @contextmanager
    def stream(
        self, path: str, *, verb: str, kind: Kind, name: str, namespace: str | None, params: dict[str, Any]
    ) -> Iterator[httpx2.Response]:
        """A response that is read as it comes, without a time limit."""
        try:
            with self._open(path, params) as response:
                if not response.is_success:
                    response.read()
                    raise self.refused(response, verb=verb, kind=kind, name=name, namespace=namespace)
                yield response
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as e:
            raise self.unreachable(e) from e

    @contextmanager
    def _open(self, path: str, params: dict[str, Any]) -> Iterator[httpx2.Response]:
        client = self.client
        with client.stream("GET", path, params=params, timeout=STREAM_TIMEOUT) as response:
            if response.status_code != UNAUTHORIZED:
                yield response
                return
        self.log_in(rejected=client)
        with self.client.stream("GET", path, params=params, timeout=STREAM_TIMEOUT) as response:
            yield response

    def refused(self, response: httpx2.Response, *, verb: str, kind: Kind, name: str, namespace: str | None) -> Refused:
        """Explains a refused request; expired credentials are reported as such."""
        code = response.status_code
        if code == UNAUTHORIZED and (expired := self._expired()):
            return Refused(expired.problem, remedy=expired.remedy, code=code)
        return refusal(response, verb=verb, kind=kind, name=name, namespace=namespace, cluster=self.name)

    def unreachable(self, error: Exception) -> Unreachable:
        tls = tls_error(error)
        if tls and tls.reason in EXPIRED_ALERTS and (expired := self._expired()):
            return Unreachable(expired.problem, remedy=expired.remedy)
        return unreachable(error, server=self.server, cluster=self.name)


def lines(response: httpx2.Response) -> Iterator[str]:
    """The lines of a stream. `iter_lines` also splits at separators that a log or JSON may contain, such as U+0085."""
    rest = b""
    for block in response.iter_bytes():
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _is_temporary(response: httpx2.Response) -> bool:
    return response.status_code in TEMPORARY or (response.status_code == 500 and WEBHOOK in response.text)
