import pytest

from stoker.image.reference import parse
from stoker.spec.errors import UserError

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("name", "full_name"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
        ("docker.io/python", "docker.io/library/python:latest"),
        ("team/app:1", "docker.io/team/app:1"),
        ("registry.example.com/team/app", "registry.example.com/team/app:latest"),
        ("registry.example.com:5000/app:v1", "registry.example.com:5000/app:v1"),
        (f"registry.example.com/a/b/c@{DIGEST}", f"registry.example.com/a/b/c@{DIGEST}"),
        (f"app:1@{DIGEST}", f"docker.io/library/app:1@{DIGEST}"),
        ("localhost/app", "localhost/app:latest"),
    ],
)
def test_names_are_parsed_as_by_container_tools(name: str, full_name: str) -> None:
    assert str(parse(name)) == full_name


def test_a_registry_on_this_machine_or_written_with_http_is_used_without_tls() -> None:
    assert parse("127.0.0.1:5000/app").url == "http://127.0.0.1:5000"
    assert parse("localhost:5000/app").url == "http://localhost:5000"
    assert parse("http://10.1.2.3:5000/app").url == "http://10.1.2.3:5000"
    assert str(parse("http://10.1.2.3:5000/app:1")) == "10.1.2.3:5000/app:1"
    assert parse("10.1.2.3:5000/app").url == "https://10.1.2.3:5000"


@pytest.mark.parametrize(
    "name", ["", "Team/App", "app:", "app@sha256:12", "reg.example.com/", "a b", "reg.example.com/app:-x", "../app"]
)
def test_invalid_names_are_refused_with_an_example(name: str) -> None:
    with pytest.raises(UserError, match=r"Write"):
        parse(name)
