"""Which URLs may be requested, and how messages show them."""

import ipaddress
import re
from urllib.parse import urlsplit

from stoker.data.remote.transfer import RemoteError

WEB = ("https://", "http://")


def check(url: str) -> None:
    """Every URL is checked before a request, redirects too: the connection must be private."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as e:
        raise RemoteError(f"{shown(url)} is not a URL ({e})", remedy="Check the address") from e
    if parts.username is not None:
        raise RemoteError(
            f"{shown(url)}: the URL contains a password, which would be stored in the run's files",
            remedy="Fetch the file first, or use a URL that needs none",
        )
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(host)):
        raise RemoteError(
            f"{shown(url)}: what comes over {parts.scheme}:// can be read and changed on its way",
            remedy="Use https://, or fetch the files first",
        )


def same_server(url: str, other: str) -> bool:
    first, second = urlsplit(url), urlsplit(other)
    return (first.scheme, first.netloc) == (second.scheme, second.netloc)


def shown(url: str) -> str:
    """The URL without its secrets: a password, or the query, which may sign it."""
    if not url.startswith(WEB):
        return url
    return re.sub(r"(?<=://)[^/]*@", "", re.split(r"[?#]", url, maxsplit=1)[0])


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
