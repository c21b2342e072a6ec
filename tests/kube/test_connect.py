"""No cluster is needed to learn that there is none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from stoker.kube import Forbidden, LoggedOut, Unreachable, connect
from stoker.kube.connect import contexts
from stoker.kube.kinds import KINDS
from stoker.kube.refusals import Refused, forbidden, refusal
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


def test_without_a_kubeconfig_it_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(UserError, match=f"no kubeconfig .*{tmp_path}/none.* export KUBECONFIG"):
        connect()


def test_a_wrong_context_names_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = kubeconfig(tmp_path / "config", server="https://127.0.0.1:1", names=("training-east", "lab"))
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(UserError, match=r"no context 'training-eats'. Did you mean training-east\?"):
        connect("training-eats")
    with pytest.raises(UserError, match=r"no context 'zzz'. There are: training-east, lab"):
        connect("zzz")


def test_a_damaged_kubeconfig_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_several_kubeconfigs_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = kubeconfig(tmp_path / "one", server="https://127.0.0.1:1", names=("a", "b"))
    two = kubeconfig(tmp_path / "two", server="https://127.0.0.1:2", names=("b", "c"))
    monkeypatch.setenv("KUBECONFIG", f"{one}:{tmp_path / 'gone'}:{two}")
    known = contexts()
    assert known.files == (one, two)
    assert known.current == "a"
    assert list(known.namespaces) == ["a", "b", "c"]


def test_an_api_server_that_is_not_there_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port("127.0.0.1")
    file = kubeconfig(tmp_path / "config", server=f"https://127.0.0.1:{port}")
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(Unreachable, match=f"API server https://127.0.0.1:{port} of context lab does not answer"):
        connect()


def test_a_login_command_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command, said in (("no-such-login", "no-such-login"), ("false", "non-zero code")):
        user: dict[str, object] = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": command}}
        file = kubeconfig(tmp_path / "config", server="https://127.0.0.1:1", user=user)
        monkeypatch.setenv("KUBECONFIG", str(file))
        with pytest.raises(UserError, match=f"no credentials for context lab: .*{said}"):
            connect()


def test_a_login_that_has_expired_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["-c", "echo 'The SSO session has expired or is invalid' >&2; exit 255"]
    user: dict[str, object] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": words}
    }
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", server="https://127.0.0.1:1", user=user)))
    with pytest.raises(LoggedOut, match=r"the login for context lab has expired: .*SSO session.*aws sso login"):
        connect()


@pytest.mark.parametrize(
    ("server", "user", "said"),
    [
        ("http://[::1", {"token": "t"}, "no credentials for context lab: Invalid"),
        ("https://127.0.0.1:1", {"exec": {"command": "true"}}, "an entry lacks 'apiVersion'"),
        ("https://127.0.0.1:1", {"exec": "true"}, "no credentials for context lab: "),
        (5, {"token": "t"}, "no credentials for context lab: "),
    ],
)
def test_an_entry_that_makes_no_sense_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Any, user: dict[str, object], said: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", server=server, user=user)))
    with pytest.raises(LoggedOut, match=said) as caught:
        connect()
    assert "kubectl --context lab auth whoami" in caught.value.remedy


@pytest.mark.parametrize("said", [b"<html>Please log in</html>", b"[]", b'{"hello": 1}'])
def test_a_server_that_is_no_api_server_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answering: Callable[..., str], said: bytes
) -> None:
    host = answering(lambda *_: (200, {}, said))
    file = kubeconfig(tmp_path / "c", server=f"http://{host}", user={"token": 5})
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(Unreachable, match="answers, but not as a Kubernetes API server"):
        connect()


def test_what_is_forbidden_comes_with_the_role_that_would_allow_it() -> None:
    error = forbidden(verb="create", kind=KINDS["Job"], namespace="team", who="context lab")
    assert error.problem == "you may not create jobs in namespace team of context lab"
    role, _ = yaml.safe_load_all(error.remedy.partition("\n")[2])
    assert role["kind"] == "Role"
    assert role["metadata"] == {"name": "stoker-jobs", "namespace": "team"}
    assert role["rules"] == [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "patch"]}]


def answer(message: str, *, verb: str = "patch", code: int = 403) -> Refused:
    said = httpx.Response(code, json={"kind": "Status", "message": message})
    return refusal(said, verb=verb, kind=KINDS["Pod"], name="x", namespace="team", who="context lab")


def test_a_missing_right_is_told_by_the_servers_own_words() -> None:
    said = 'pods "x" is forbidden: User "ann" cannot create resource "pods" in API group "" in the namespace "team"'
    assert isinstance(answer(said), Forbidden)
    assert answer(said).problem == "you may not create pods in namespace team of context lab"
    _, binding = yaml.safe_load_all(answer(said).remedy.partition("\n")[2])
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
            "describe quota",
        ),
        ('pods "x" is forbidden: failed quota: q: must specify limits.cpu', "describe quota"),
        ('pods "x" is forbidden: maximum cpu usage per Container is 1, but limit is 2', "describe limits"),
        ('admission webhook "validate.kyverno.svc-fail" denied the request: no latest tag', "Follow its rule"),
        ('pods "x" is forbidden: something else', "Ask who runs the cluster"),
    ],
)
def test_a_rule_of_the_cluster_is_no_missing_right(message: str, remedy: str) -> None:
    error = answer(message)
    assert not isinstance(error, Forbidden)
    assert message in error.problem
    assert remedy in error.remedy
    assert "Role" not in error.remedy


def test_what_may_not_be_looked_at_is_forbidden_whatever_the_words() -> None:
    assert isinstance(answer("no", verb="list"), Forbidden)
