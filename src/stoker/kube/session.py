"""Requests to an API server that survive what passes: expired tokens, a server that restarts, webhooks not up yet."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from stoker.kube.expiry import Expired
from stoker.kube.kinds import Kind
from stoker.kube.refusals import Refused, Unreachable, refusal, unreachable

TRIES = 5
CONNECTS = 3  # of these where nobody listens
PAUSE = 0.25  # seconds before the second try; doubled each time
UNAUTHORIZED = 401
OUT_OF_DATE = "ALERT_CERTIFICATE_EXPIRED"  # TLS: the server does not take the client's certificate
PASSING = {429, 502, 503, 504}
WEBHOOK = "failed calling webhook"  # an operator that has just been installed answers some seconds later


class Session:
    def __init__(
        self, log_in: Callable[[], httpx.Client], *, who: str, expired: Callable[[], Expired | None] = lambda: None
    ) -> None:
        """`expired`: asked when the server does not accept the credentials."""
        self._log_in = log_in
        self.who = who
        self._expired = expired
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
    ) -> httpx.Response:
        """Every request of ours may be repeated: what is made has a name, and what is deleted is gone."""
        for attempt in range(TRIES):
            last = attempt == TRIES - 1
            try:
                response = self.client.request(method, path, **more)
            except httpx.TransportError as e:
                nobody = isinstance(e, httpx.ConnectError) and attempt + 1 == CONNECTS
                if last or nobody or isinstance(e, httpx.ConnectTimeout) or "CERTIFICATE" in str(e):
                    raise self.unanswered(e) from e
            else:
                if response.is_success:
                    return response
                if response.status_code == UNAUTHORIZED and attempt == 0:
                    self.client = self._log_in()
                    continue
                if last or not _passes(response):
                    raise self.refused(response, verb=verb, kind=kind, name=name, namespace=namespace)
            time.sleep(PAUSE * 2**attempt)
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def stream(
        self, path: str, *, verb: str, kind: Kind, name: str, namespace: str | None, params: dict[str, Any]
    ) -> Iterator[httpx.Response]:
        """A body that is read as it comes, for as long as it comes."""
        timeout = httpx.Timeout(None, connect=10)
        try:
            with self.client.stream("GET", path, params=params, timeout=timeout) as response:
                if not response.is_success:
                    response.read()
                    raise self.refused(response, verb=verb, kind=kind, name=name, namespace=namespace)
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout) as e:
            raise self.unanswered(e) from e

    def refused(self, response: httpx.Response, *, verb: str, kind: Kind, name: str, namespace: str | None) -> Refused:
        """What a refusal means; of credentials that have expired, that they have."""
        code = response.status_code
        if code == UNAUTHORIZED and (expired := self._expired()):
            return Refused(expired.problem, remedy=expired.remedy, code=code)
        return refusal(response, verb=verb, kind=kind, name=name, namespace=namespace, who=self.who)

    def unanswered(self, error: Exception) -> Unreachable:
        if OUT_OF_DATE in str(error).upper().replace(" ", "_") and (expired := self._expired()):
            return Unreachable(expired.problem, remedy=expired.remedy)
        return unreachable(error, server=self.server, who=self.who)


def _passes(response: httpx.Response) -> bool:
    return response.status_code in PASSING or (response.status_code == 500 and WEBHOOK in response.text)
