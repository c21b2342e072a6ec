"""The kubectl commands in remedies."""

import shlex

import pytest

from stoker.kube.kubectl import kubectl


@pytest.mark.parametrize(
    ("context", "namespace", "arguments"),
    [
        (None, None, ["kubectl"]),
        (None, "team", ["kubectl", "-n", "team"]),
        ("my lab", "team", ["kubectl", "--context", "my lab", "-n", "team"]),
    ],
)
def test_the_command_is_quoted_for_a_shell(context: str | None, namespace: str | None, arguments: list[str]) -> None:
    assert shlex.split(kubectl(context, namespace)) == arguments
