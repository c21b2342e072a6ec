"""The kubectl commands that remedies name."""

import shlex

import pytest

from stoker.kube.kubectl import kubectl


@pytest.mark.parametrize(
    ("context", "namespace", "words"),
    [
        (None, None, ["kubectl"]),
        (None, "team", ["kubectl", "-n", "team"]),
        ("my lab", "team", ["kubectl", "--context", "my lab", "-n", "team"]),
    ],
)
def test_a_shell_takes_it_as_it_is_meant(context: str | None, namespace: str | None, words: list[str]) -> None:
    assert shlex.split(kubectl(context, namespace)) == words
