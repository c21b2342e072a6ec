"""Choosing a context, and the errors of a cluster that is missing, unreachable or refuses a request."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from stoker.kube import Forbidden, NotLoggedIn, Unreachable, connect
from stoker.kube.errors import Refused, forbidden, refusal
from stoker.kube.kinds import KINDS
from stoker.kube.kubeconfig import read_kubeconfig
from stoker.spec.errors import UserError
from tests.ports import free_port


def kubeconfig(
    path: Path, *, server: str, names: tuple[str, ...] = ("lab",), user: dict[str, object] | None = None
) -> Path:
    values = {
        "current-context": names[0],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user if user is not None else {"token": "t"}}],
        "contexts": [
            {"name": name, "context": {"cluster": "c", "user": "u", "namespace": f"of-{name}"}} for name in names
        ],
    }
    path.write_text(yaml.safe_dump(values))
    return path


def test_a_missing_kubeconfig_is_reported_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(UserError, match=f"no kubeconfig .*{tmp_path}/none.* export KUBECONFIG"):
        connect()


def test_a_kubeconfig_of_an_unknown_user_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "~no-such-user/config")
    with pytest.raises(UserError, match=r"no kubeconfig .*~no-such-user/config"):
        connect()


def test_an_unknown_context_suggests_the_nearest_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = kubeconfig(tmp_path / "config", server="https://127.0.0.1:1", names=("training-east", "lab"))
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(UserError, match=r"no context 'training-eats'. Did you mean training-east\?"):
        connect("training-eats")
    with pytest.raises(UserError, match=r"no context 'zzz'. There are: training-east, lab"):
        connect("zzz")


def test_a_malformed_kubeconfig_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(file))
    named = "{name: a, context: %s}"
    for text in (
        "contexts: [",
        "- 1",
        "contexts: [1]",
        "contexts: [name]",
        "contexts: {name: a}",
        "contexts: [{name: 5}]",
        f"contexts: [{named % 'text'}]",
        f"contexts: [{named % '{namespace: [a]}'}]",
        "current-context: 5",
        "&a [*a]",
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=f"{file} is no kubeconfig"):
            connect()
    file.write_text("contexts: []")
    with pytest.raises(UserError, match="names no current context"):
        connect()


def test_several_kubeconfigs_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kubeconfig(tmp_path / "one", server="https://127.0.0.1:1", names=("a", "b"))
    second = kubeconfig(tmp_path / "two", server="https://127.0.0.1:2", names=("b", "c"))
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'gone'}:{second}")
    known = read_kubeconfig()
    assert known.files == (first, second)
    assert known.current == "a"
    assert list(known.namespaces) == ["a", "b", "c"]


def test_an_api_server_that_does_not_answer_is_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port("127.0.0.1")
    file = kubeconfig(tmp_path / "config", server=f"https://127.0.0.1:{port}")
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(Unreachable, match=f"API server https://127.0.0.1:{port} of context lab does not answer"):
        connect()


def test_a_failing_login_command_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command, reason in (
        ("no-such-login", "no-such-login is not installed"),
        ("false", "false ended with exit code 1"),
    ):
        user: dict[str, object] = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": command}}
        file = kubeconfig(tmp_path / "config", server="https://127.0.0.1:1", user=user)
        monkeypatch.setenv("KUBECONFIG", str(file))
        with pytest.raises(UserError, match=f"no credentials for context lab: .*{reason}"):
            connect()


def test_an_expired_login_is_reported_as_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ["-c", "echo 'The SSO session has expired or is invalid' >&2; exit 255"]
    user: dict[str, object] = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": args}}
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", server="https://127.0.0.1:1", user=user)))
    with pytest.raises(NotLoggedIn, match=r"the login for context lab has expired: .*SSO session.*aws sso login"):
        connect()


@pytest.mark.parametrize(
    ("server", "user", "reason"),
    [
        ("http://[::1", {"token": "t"}, "no credentials for context lab: Invalid"),
        ("https://127.0.0.1:1", {"exec": {"command": "true"}}, "login command is missing 'apiVersion'"),
        ("https://127.0.0.1:1", {"exec": "true"}, "no credentials for context lab: "),
        (5, {"token": "t"}, "no credentials for context lab: "),
    ],
)
def test_a_malformed_entry_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Any, user: dict[str, object], reason: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", server=server, user=user)))
    with pytest.raises(NotLoggedIn, match=reason) as caught:
        connect()
    assert "kubectl --context lab auth whoami" in caught.value.remedy


@pytest.mark.parametrize("body", [b"<html>Please log in</html>", b"[]", b'{"hello": 1}'])
def test_a_server_that_is_no_api_server_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answering: Callable[..., str], body: bytes
) -> None:
    host = answering(lambda *_: (200, {}, body))
    file = kubeconfig(tmp_path / "c", server=f"http://{host}", user={"token": 5})
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(Unreachable, match="answers, but not as a Kubernetes API server"):
        connect()


def test_a_forbidden_request_is_reported_with_the_role_that_allows_it() -> None:
    error = forbidden(verb="create", kind=KINDS["Job"], namespace="team", cluster="context lab")
    assert error.problem == "you may not create jobs in namespace team of context lab"
    role, _ = yaml.safe_load_all(error.remedy.partition("\n")[2])
    assert role["kind"] == "Role"
    assert role["metadata"] == {"name": "stoker-jobs", "namespace": "team"}
    assert role["rules"] == [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "patch"]}]


def answer(message: str, *, verb: str = "patch", code: int = 403) -> Refused:
    response = httpx2.Response(code, json={"kind": "Status", "message": message})
    return refusal(response, verb=verb, kind=KINDS["Pod"], name="x", namespace="team", cluster="context lab")


def test_a_missing_right_is_found_in_the_servers_message() -> None:
    message = 'pods "x" is forbidden: User "ann" cannot create resource "pods" in API group "" in the namespace "team"'
    assert isinstance(answer(message), Forbidden)
    assert answer(message).problem == "you may not create pods in namespace team of context lab"
    _, binding = yaml.safe_load_all(answer(message).remedy.partition("\n")[2])
    assert binding["subjects"] == [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}]


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        (
            'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true (pod must not ...)',
            "on.pod: {spec: {securityContext",
        ),
        (
            'pods "x" is forbidden: error looking up service account t/a: serviceaccount "a" not found',
            "service_account",
        ),
        ('pods "x" is forbidden: no PriorityClass with name high was found', "on.priority"),
        (
            'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=9, limited: pods=9',
            "see: kubectl --context lab -n team describe quota",
        ),
        ('pods "x" is forbidden: failed quota: q: must specify limits.cpu', "describe quota"),
        ('pods "x" is forbidden: maximum cpu usage per Container is 1, but limit is 2', "describe limits"),
        ('admission webhook "validate.kyverno.svc-fail" denied the request: no latest tag', "Follow its rule"),
        ('pods "x" is forbidden: something else', "Ask your cluster admin"),
    ],
)
def test_a_rule_of_the_cluster_is_not_reported_as_a_missing_right(message: str, remedy: str) -> None:
    error = answer(message)
    assert not isinstance(error, Forbidden)
    assert message in error.problem
    assert remedy in error.remedy
    assert "Role" not in error.remedy


def test_a_refused_read_is_a_missing_right_whatever_the_message() -> None:
    assert isinstance(answer("no", verb="list"), Forbidden)
