"""Files of a web server, read by ranges; and the HTTP requests of the other schemes: `ask` and `body`."""

import http.client
import re
import string
import time
from collections.abc import Iterator, Mapping
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from stoker.data.remote.addresses import check, same_server, shown
from stoker.data.remote.transfer import Interrupted, RemoteError, changed, with_retries
from stoker.spec.errors import UserError

LOOKUP_TIMEOUT_S, READ_TIMEOUT_S = 10, 60  # while the user waits, and during a long transfer
CHUNK_BYTES = 1 << 18
MAX_RESPONSE_BYTES = 64 << 20  # the hub lists a thousand files in some 300 kB
TEMPORARY = {408, 425, 429, 500, 502, 503, 504}
UNSATISFIABLE = 416
NO_TAG = "modified:"  # without a date: the response for a part of a file may leave it out
RATE_LIMIT = re.compile(r"\br=0\s*;\s*t=(\d+)")  # the hub: no requests left for t seconds


class HttpRefused(Exception):
    """A response that another try would not change."""

    def __init__(self, status: int, headers: Message) -> None:
        super().__init__(str(status))
        self.status, self.headers = status, headers


def find(location: str) -> list[tuple[str, str, int, str]]:
    """The file at a URL."""
    check(location)
    path = urlsplit(location).path
    if "*" in path:
        raise UserError(
            f"{shown(location)}: a web server does not list its files", remedy="Name each file by its own URL"
        )
    size, tag = with_retries(lambda: _stat(location), name=shown(location))
    return [(location, unquote(path).rpartition("/")[2] or "index.html", size, tag)]


def read(url: str, start: int, tag: str) -> Iterator[bytes]:
    headers = {"If-Range": tag.removeprefix("etag:")} if tag.startswith('etag:"') else {}
    try:
        yield from body(url, start, headers=headers, tag=tag)
    except HttpRefused as e:
        raise _refusal(url, e) from e


def ask(url: str, *, headers: Mapping[str, str]) -> tuple[bytes, Message]:
    """A whole response. Raises Interrupted or HttpRefused."""
    answer = _open(url, headers, LOOKUP_TIMEOUT_S)
    with answer:
        try:
            content = answer.read(MAX_RESPONSE_BYTES + 1)
        except (OSError, http.client.HTTPException) as e:
            raise Interrupted(_reason(e)) from e
    if len(content) > MAX_RESPONSE_BYTES:
        raise RemoteError(
            f"{shown(url)} answers with more than {MAX_RESPONSE_BYTES >> 20} MiB",
            remedy="Check the address of the server",
        )
    return content, answer.headers


def body(url: str, start: int, *, headers: Mapping[str, str], tag: str | None = None) -> Iterator[bytes]:
    """The bytes from `start` on, even if the server ignores ranges. Refuses a file whose tag is no longer `tag`."""
    answer = _open(url, {**headers, "Range": f"bytes={start}-"} if start else headers, READ_TIMEOUT_S)
    with answer:
        if tag is not None and _tag(answer.headers) not in (tag, NO_TAG):
            raise changed(shown(url))
        skip = start
        if answer.status == http.client.PARTIAL_CONTENT:
            if not re.match(rf"bytes {start}-", answer.headers.get("Content-Range", "")):
                raise Interrupted("the server sent another range than requested")
            skip = 0
        try:
            while chunk := answer.read(CHUNK_BYTES):
                skip, chunk = max(0, skip - len(chunk)), chunk[skip:]
                if chunk:
                    yield chunk
        except (OSError, http.client.HTTPException) as e:
            raise Interrupted(_reason(e)) from e


class _Redirects(HTTPRedirectHandler):
    """Credentials are sent to their own server only, not to a server that it redirects to."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        check(newurl)
        if request is not None and not same_server(newurl, req.full_url):
            request.remove_header("Authorization")
        return request


def _http_opener() -> OpenerDirector:
    """HTTP only: Python's default opener would follow a redirect to ftp:// too."""
    opener = OpenerDirector()
    for handler in (HTTPDefaultErrorHandler, HTTPErrorProcessor, HTTPHandler, HTTPSHandler, ProxyHandler, _Redirects):
        opener.add_handler(handler())
    return opener


_opener = _http_opener()


def _open(url: str, headers: Mapping[str, str], seconds: float) -> Any:
    check(url)
    url = quote(url, safe=string.punctuation)  # characters that a request line may not have
    request = Request(url, headers={"User-Agent": "stoker", "Accept-Encoding": "identity", **headers})
    try:
        return _opener.open(request, timeout=seconds)
    except HTTPError as e:
        with e:
            if e.code in TEMPORARY:
                raise Interrupted(f"{e.code} {e.reason}", after=_retry_after(e.headers)) from e
            raise HttpRefused(e.code, e.headers) from e
    except (OSError, http.client.HTTPException) as e:
        raise Interrupted(_reason(e)) from e


def _stat(url: str) -> tuple[int, str]:
    """Size and tag, from a request for the first byte: not every server supports HEAD."""
    try:
        answer = _open(url, {"Range": "bytes=0-0"}, LOOKUP_TIMEOUT_S)
    except HttpRefused as e:
        raise _refusal(url, e) from e
    with answer:
        whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
        length = whole if answer.status == http.client.PARTIAL_CONTENT else answer.headers.get("Content-Length", "")
        if not length.isdigit():
            raise RemoteError(f"{shown(url)}: the server does not say how long it is", remedy="Fetch the file first")
        tag = _tag(answer.headers)
        if tag == NO_TAG:
            raise RemoteError(
                f"{shown(url)}: the server sends neither ETag nor Last-Modified, so changes would go unnoticed",
                remedy="Fetch the file first",
            )
        return int(length), tag


def _tag(headers: Message) -> str:
    etag = headers.get("ETag")
    return f"etag:{etag}" if etag else f"{NO_TAG}{headers.get('Last-Modified', '')}"


def _refusal(url: str, refused: HttpRefused) -> RemoteError:
    url = shown(url)
    if refused.status == UNSATISFIABLE:
        return RemoteError(f"{url} is empty", remedy="Name a file with some text")
    if refused.status in (401, 403):
        return RemoteError(f"no permission for {url} ({refused.status})", remedy="Use a URL that you may read")
    if refused.status in (404, 410):
        return RemoteError(f"there is no {url}", remedy="Check the address")
    return RemoteError(f"{url} cannot be fetched ({refused.status})", remedy="Check the address")


def _retry_after(headers: Message) -> float | None:
    value = headers.get("Retry-After", "")
    if value.isdigit():
        return float(value)
    if limit := RATE_LIMIT.search(headers.get("RateLimit", "")):
        return float(limit[1])
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error) or type(error).__name__
