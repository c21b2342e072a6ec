"""No cluster is needed to learn that there is none."""

import socket
from pathlib import Path

import pytest
import yaml

from stoker.kube import Unreachable, connect
from stoker.kube.connect import contexts
from stoker.kube.kinds import KINDS
from stoker.kube.refusals import forbidden, role_for
from stoker.spec.errors import UserError


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


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


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
    for text in ("contexts: [", "- 1", "contexts: [1]"):
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


def test_an_api_server_that_is_not_there_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    file = kubeconfig(tmp_path / "config", server=f"https://127.0.0.1:{free_port}")
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(Unreachable, match=f"API server https://127.0.0.1:{free_port} of context lab does not answer"):
        connect()


def test_a_login_command_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command, said in (("no-such-login", "no-such-login"), ("false", "non-zero code")):
        user: dict[str, object] = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": command}}
        file = kubeconfig(tmp_path / "config", server="https://127.0.0.1:1", user=user)
        monkeypatch.setenv("KUBECONFIG", str(file))
        with pytest.raises(UserError, match=f"no credentials for context lab: .*{said}"):
            connect()


def test_what_is_forbidden_comes_with_the_role_that_would_allow_it() -> None:
    error = forbidden(verb="create", kind=KINDS["Job"], namespace="team", who="context lab")
    assert error.problem == "you may not create jobs in namespace team of context lab"
    role = yaml.safe_load(error.remedy.partition("\n")[2])
    assert role["kind"] == "Role"
    assert role["metadata"] == {"name": "stoker", "namespace": "team"}
    assert role["rules"] == [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "patch"]}]


def test_a_right_that_is_of_no_namespace_needs_a_cluster_role() -> None:
    rights = [("list", KINDS["Node"]), ("get", KINDS["Pod"]), ("list", KINDS["Pod"])]
    role = role_for(rights, namespace="team")
    assert role["kind"] == "ClusterRole"
    assert role["rules"][1] == {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
