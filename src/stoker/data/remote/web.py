"""Files of a web server, by ranges. Also what speaks HTTP for others: `ask` and `body`."""

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
from stoker.data.remote.transfer import Broken, RemoteError, changed, patiently
from stoker.spec.errors import UserError

SHORT, LONG = 10, 60  # seconds to wait for an answer: while somebody waits for it, and in the midst of a long work
CHUNK = 1 << 18
LARGEST_ANSWER = 64 << 20  # bytes; the hub lists a thousand files in some 300 kB
AGAIN = {408, 425, 429, 500, 502, 503, 504}
UNSATISFIABLE = 416
UNTOLD = "modified:"  # and nothing more: a part of a file need not tell it again


class Refused(Exception):
    """An answer that another try would not change."""

    def __init__(self, status: int, headers: Message) -> None:
        super().__init__(str(status))
        self.status, self.headers = status, headers


def find(word: str) -> list[tuple[str, str, int, str]]:
    """The one file that a URL leads to."""
    check(word)
    path = urlsplit(word).path
    if "*" in path:
        raise UserError(f"{shown(word)}: a web server does not list its files", remedy="Name each file by its own URL")
    size, tag = patiently(lambda: _look(word), name=shown(word))
    return [(word, unquote(path).rpartition("/")[2] or "index.html", size, tag)]


def read(url: str, start: int, tag: str) -> Iterator[bytes]:
    headers = {"If-Range": tag.removeprefix("etag:")} if tag.startswith('etag:"') else {}
    try:
        yield from body(url, start, headers=headers, tag=tag)
    except Refused as e:
        raise _no(url, e) from e


def ask(url: str, *, headers: Mapping[str, str]) -> tuple[bytes, Message]:
    """A whole answer. Raises Broken or Refused."""
    answer = _open(url, headers, SHORT)
    with answer:
        try:
            content = answer.read(LARGEST_ANSWER + 1)
        except (OSError, http.client.HTTPException) as e:
            raise Broken(_reason(e)) from e
    if len(content) > LARGEST_ANSWER:
        raise RemoteError(
            f"{shown(url)} answers with more than {LARGEST_ANSWER >> 20} MiB", remedy="Check the address of the server"
        )
    return content, answer.headers


def body(url: str, start: int, *, headers: Mapping[str, str], tag: str | None = None) -> Iterator[bytes]:
    """The bytes from `start` on, whatever the server makes of ranges; `tag` is what they must still have."""
    answer = _open(url, {**headers, "Range": f"bytes={start}-"} if start else headers, LONG)
    with answer:
        if tag is not None and _tag(answer.headers) not in (tag, UNTOLD):
            raise changed(shown(url))
        skip = start
        if answer.status == http.client.PARTIAL_CONTENT:
            if not re.match(rf"bytes {start}-", answer.headers.get("Content-Range", "")):
                raise Broken("it answered with another part than was asked for")
            skip = 0
        try:
            while chunk := answer.read(CHUNK):
                skip, chunk = max(0, skip - len(chunk)), chunk[skip:]
                if chunk:
                    yield chunk
        except (OSError, http.client.HTTPException) as e:
            raise Broken(_reason(e)) from e


class _Redirects(HTTPRedirectHandler):
    """Credentials are for the server that they were given for, not for the one it sends us to."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        there = super().redirect_request(req, fp, code, msg, headers, newurl)
        check(newurl)
        if there is not None and not same_server(newurl, req.full_url):
            there.remove_header("Authorization")
        return there


def _speaking_http() -> OpenerDirector:
    """And nothing else: Python's own opener would follow a redirect to ftp:// too."""
    opener = OpenerDirector()
    for handler in (HTTPDefaultErrorHandler, HTTPErrorProcessor, HTTPHandler, HTTPSHandler, ProxyHandler, _Redirects):
        opener.add_handler(handler())
    return opener


_opener = _speaking_http()


def _open(url: str, headers: Mapping[str, str], seconds: float) -> Any:
    check(url)
    url = quote(url, safe=string.punctuation)  # blanks and letters that no request line may have
    request = Request(url, headers={"User-Agent": "stoker", "Accept-Encoding": "identity", **headers})
    try:
        return _opener.open(request, timeout=seconds)
    except HTTPError as e:
        with e:
            if e.code in AGAIN:
                raise Broken(f"{e.code} {e.reason}", after=_retry_after(e.headers)) from e
            raise Refused(e.code, e.headers) from e
    except (OSError, http.client.HTTPException) as e:
        raise Broken(_reason(e)) from e


def _look(url: str) -> tuple[int, str]:
    """Size and tag, from the answer to a request for the first byte: not every server takes a HEAD."""
    try:
        answer = _open(url, {"Range": "bytes=0-0"}, SHORT)
    except Refused as e:
        raise _no(url, e) from e
    with answer:
        whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
        length = whole if answer.status == http.client.PARTIAL_CONTENT else answer.headers.get("Content-Length", "")
        if not length.isdigit():
            raise RemoteError(f"{shown(url)}: the server does not say how long it is", remedy="Fetch the file first")
        tag = _tag(answer.headers)
        if tag == UNTOLD:
            raise RemoteError(
                f"{shown(url)}: the server tells neither ETag nor Last-Modified, so no change would be noticed",
                remedy="Fetch the file first",
            )
        return int(length), tag


def _tag(headers: Message) -> str:
    etag = headers.get("ETag")
    return f"etag:{etag}" if etag else f"{UNTOLD}{headers.get('Last-Modified', '')}"


def _no(url: str, refused: Refused) -> RemoteError:
    url = shown(url)
    if refused.status == UNSATISFIABLE:
        return RemoteError(f"{url} is empty", remedy="Name a file that has some text")
    if refused.status in (401, 403):
        return RemoteError(f"no permission for {url} ({refused.status})", remedy="Use a URL that you may read")
    if refused.status in (404, 410):
        return RemoteError(f"there is no {url}", remedy="Check the address")
    return RemoteError(f"{url} cannot be fetched ({refused.status})", remedy="Check the address")


def _retry_after(headers: Message) -> float | None:
    value = headers.get("Retry-After", "")
    if value.isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error) or type(error).__name__
