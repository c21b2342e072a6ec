"""What comes from the web can be neither read nor changed on its way, and no message shows a secret."""

import pytest

from stoker.data.remote.addresses import check, same_server, shown
from stoker.spec.errors import UserError


@pytest.mark.parametrize(
    "url", ["https://example.com/a", "http://127.0.0.1:8000/a", "http://[::1]/a", "http://localhost"]
)
def test_a_private_connection_is_allowed(url: str) -> None:
    check(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://example.com/a", "over http://"),
        ("http://127.0.0.1.example.com/a", "over http://"),
        ("ftp://127.0.0.1/a", "over ftp://"),
        ("file:///etc/passwd", "over file://"),
        ("https://[::1/a", "not a URL"),
        ("https://bob:hunter2@example.com/a?key=hunter2", "contains a password"),
    ],
)
def test_other_urls_are_refused_and_no_password_is_shown(url: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as e:
        check(url)
    assert "hunter2" not in str(e.value)


def test_a_server_is_known_by_all_of_its_name() -> None:
    hub = "https://huggingface.co"
    assert same_server("https://huggingface.co/api", hub)
    assert not same_server("https://huggingface.co.example.com/api", hub)
    assert not same_server("https://huggingface.co:8443/api", hub)
    assert not same_server("http://huggingface.co/api", hub)


def test_only_a_web_address_has_a_query() -> None:
    assert shown("https://example.com/a.txt?X-Amz-Signature=abc#d") == "https://example.com/a.txt"
    assert shown("s3://bucket/file-?.txt") == "s3://bucket/file-?.txt"
    assert shown("gs://bucket/a.txt#17") == "gs://bucket/a.txt#17"
