"""Which URLs of the web are asked, and how they are shown."""

import ipaddress
import re
from urllib.parse import urlsplit

from stoker.data.remote.transfer import RemoteError

WEB = ("https://", "http://")


def check(url: str) -> None:
    """Of every URL before it is asked, also of those a server sends us to: nobody on the way may read or change it."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as e:
        raise RemoteError(f"{shown(url)} is no URL ({e})", remedy="Check the address") from e
    if parts.username is not None:
        raise RemoteError(
            f"{shown(url)}: the URL has a password in it, and would be kept in the run's files",
            remedy="Fetch the file first, or use a URL that needs none",
        )
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_here(host)):
        raise RemoteError(
            f"{shown(url)}: what comes over {parts.scheme}:// can be read and changed on its way",
            remedy="Use https://, or fetch the files first",
        )


def same_server(one: str, other: str) -> bool:
    first, second = urlsplit(one), urlsplit(other)
    return (first.scheme, first.netloc) == (second.scheme, second.netloc)


def shown(url: str) -> str:
    """Without what may be a secret: a password, or the query, which signs a URL that is lent for some hours."""
    if not url.startswith(WEB):
        return url
    return re.sub(r"(?<=://)[^/]*@", "", re.split(r"[?#]", url, maxsplit=1)[0])


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
