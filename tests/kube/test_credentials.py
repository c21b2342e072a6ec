"""Every way to log in that a kubeconfig or a pod offers, against real servers."""

import importlib
import io
import json
import os
import ssl
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.kube import NotLoggedIn, connect
from stoker.kube.credentials import CredentialsError, of_context
from stoker.kube.kubeconfig import merged
from tests.answers import answers
from tests.kube.certificates import certificate, encoded

TOMORROW = datetime.now(UTC) + timedelta(days=1)
VERSION = b'{"gitVersion": "v1.34.4"}'
V1 = "client.authentication.k8s.io/v1"


def kubeconfig(folder: Path, *, cluster: dict[str, Any], user: dict[str, Any] | None) -> Path:
    context = {"cluster": "c"} | ({"user": "u"} if user is not None else {})
    values = {
        "current-context": "lab",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}] if user is not None else [],
        "contexts": [{"name": "lab", "context": context}],
    }
    file = folder / "config"
    file.write_text(yaml.safe_dump(values))
    return file


def plugin(folder: Path, text: str) -> str:
    file = folder / "login"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return "./login"


def credential(**status: str) -> str:
    return json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status})


class Api:
    """Accepts one token, and remembers what it was sent."""

    def __init__(self) -> None:
        self.accepted = "first"
        self.seen: list[str | None] = []

    def __call__(self, _: str, path: str, headers: Message) -> tuple[int, dict[str, str], bytes]:
        self.seen.append(headers["Authorization"])
        if headers["Authorization"] != f"Bearer {self.accepted}":
            return 401, {}, b'{"message": "Unauthorized"}'
        return 200, {}, VERSION if path == "/version" else b'{"items": [], "metadata": {"resourceVersion": "1"}}'


@pytest.fixture
def api(answering: Callable[..., str]) -> tuple[Api, str]:
    served = Api()
    return served, f"http://{answering(served)}"


def test_a_token_file_is_read_again_when_the_server_rejects_its_token(
    api: tuple[Api, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, server = api
    (tmp_path / "token").write_text("first\n")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, cluster={"server": server}, user={"tokenFile": "token"})))
    cluster = connect()
    served.accepted = "second"
    (tmp_path / "token").write_text("second\n")
    assert list(cluster.list("Pod")) == []
    assert served.seen == ["Bearer first", "Bearer first", "Bearer second"]


def test_a_login_command_runs_again_when_its_token_is_rejected(
    api: tuple[Api, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, server = api
    (tmp_path / "answer").write_text(credential(token="first"))
    command = plugin(tmp_path, f'echo "$KUBERNETES_EXEC_INFO $REGION $1" >> {tmp_path}/calls\ncat {tmp_path}/answer')
    login = {
        "apiVersion": V1,
        "command": command,
        "args": ["get-token"],
        "env": [{"name": "REGION", "value": "east"}],
        "provideClusterInfo": True,
        "interactiveMode": "Never",
    }
    file = kubeconfig(tmp_path, cluster={"server": server}, user={"exec": login})
    monkeypatch.setenv("KUBECONFIG", str(file))
    cluster = connect()
    list(cluster.list("Pod"))
    served.accepted = "second"
    (tmp_path / "answer").write_text(credential(token="second"))
    assert list(cluster.logs("x"))  # a stream logs in again too
    first, second = (tmp_path / "calls").read_text().splitlines()
    info, *rest = first.rsplit(" ", 2)
    assert (rest, second) == (["east", "get-token"], first)
    spec = {"interactive": False, "cluster": {"server": server}}
    assert json.loads(info) == {"apiVersion": V1, "kind": "ExecCredential", "spec": spec}


def test_a_login_command_runs_once_for_many_requests_that_are_rejected_together(
    api: tuple[Api, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, server = api
    (tmp_path / "answer").write_text(credential(token="first"))
    command = plugin(tmp_path, f"echo >> {tmp_path}/calls\nsleep 0.2\ncat {tmp_path}/answer")
    login = {"apiVersion": V1, "command": command}
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, cluster={"server": server}, user={"exec": login})))
    cluster = connect()
    served.accepted = "second"
    (tmp_path / "answer").write_text(credential(token="second"))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: list(cluster.list("Pod")), range(8))) == [[]] * 8
    assert len((tmp_path / "calls").read_text().splitlines()) == 2


def test_a_token_that_expires_while_the_server_restarts_is_renewed(
    answering: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = iter([200, 503, 401, 200])
    server = f"http://{answering(lambda *_: (next(codes), {}, VERSION))}"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, cluster={"server": server}, user={"token": "t"})))
    assert connect().get("Pod", "x") == json.loads(VERSION)


def test_what_a_login_command_asks_of_the_user_is_shown_at_once(
    api: tuple[Api, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, server = api
    os.mkfifo(tmp_path / "entered")
    script = f"echo open https://login.example >&2\nread code < {tmp_path}/entered\necho '{credential(token='first')}'"
    login = {"apiVersion": V1, "command": plugin(tmp_path, script)}
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, cluster={"server": server}, user={"exec": login})))

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            (tmp_path / "entered").write_text("the code\n")  # the command waits until its message is shown
            return super().write(text)

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert connect().version == "v1.34.4"
    assert terminal.getvalue() == "open https://login.example\n"


def test_a_pods_token_is_read_again_when_it_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem, key = certificate(TOMORROW)
    (tmp_path / "both").write_text(pem + key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "both")
    served = Api()
    (tmp_path / "ca.crt").write_text(f"# Zertifikat für die Übung\n{pem}")
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("team\n")
    monkeypatch.setattr(importlib.import_module("stoker.kube.connect"), "IN_POD", tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with answers(served, tls) as host:
        address, _, port = host.partition(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", address)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        cluster = connect()
        served.accepted = "second"
        (tmp_path / "token").write_text("second\n")
        assert list(cluster.list("Pod")) == []
    assert (cluster.context, cluster.namespace) == (None, "team")
    assert served.seen[-1] == "Bearer second"


@pytest.mark.parametrize("how", ["data", "file", "plugin"])
def test_a_client_certificate_is_sent_and_no_key_stays_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    pem, key = certificate(TOMORROW)
    (tmp_path / "crt").write_text(pem)
    (tmp_path / "key").write_text(key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    tls.load_verify_locations(tmp_path / "crt")
    tls.verify_mode = ssl.CERT_REQUIRED
    (tmp_path / "answer").write_text(credential(clientCertificateData=pem, clientKeyData=key))
    user: dict[str, Any] = {
        "data": {"client-certificate-data": encoded(pem), "client-key-data": encoded(key)},
        "file": {"client-certificate": "crt", "client-key": "key"},
        "plugin": {"exec": {"apiVersion": V1, "command": plugin(tmp_path, f"cat {tmp_path}/answer")}},
    }[how]
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with answers(lambda *_: (200, {}, VERSION), tls) as host:
        cluster = {"server": f"https://{host}", "certificate-authority-data": encoded(pem)}
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, cluster=cluster, user=user)))
        assert connect().version == "v1.34.4"
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("more", "reachable"),
    [
        ({"insecure-skip-tls-verify": True}, True),
        ({"tls-server-name": "127.0.0.1"}, True),
        ({"tls-server-name": "api.example.com"}, False),
        ({}, False),
    ],
)
def test_tls_settings_of_the_cluster_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], reachable: bool
) -> None:
    pem, key = certificate(TOMORROW)
    (tmp_path / "both").write_text(pem + key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "both")
    with answers(lambda *_: (200, {}, VERSION), tls) as host:
        server = f"https://localhost:{host.partition(':')[2]}"  # the certificate is for 127.0.0.1
        trusted = {} if more.get("insecure-skip-tls-verify") else {"certificate-authority-data": encoded(pem)}
        file = kubeconfig(tmp_path, cluster={"server": server, **trusted, **more}, user={"token": "t"})
        monkeypatch.setenv("KUBECONFIG", str(file))
        if reachable:
            assert connect().version == "v1.34.4"
        else:
            with pytest.raises(Exception, match="certificate"):
                connect()


def test_requests_go_through_the_proxy_of_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[str] = []

    def proxy(_: str, path: str, __: Message) -> tuple[int, dict[str, str], bytes]:
        requested.append(path)
        return 200, {}, VERSION

    with answers(proxy) as host:
        cluster = {"server": "http://cluster.invalid", "proxy-url": f"http://{host}"}
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, cluster=cluster, user={"token": "t"})))
        connect()
    assert requested == ["http://cluster.invalid/version"]


def test_a_context_without_a_user_sends_no_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answering: Callable[..., str]
) -> None:
    seen: list[str | None] = []

    def answer(_: str, __: str, headers: Message) -> tuple[int, dict[str, str], bytes]:
        seen.append(headers["Authorization"])
        return 200, {}, VERSION

    file = kubeconfig(tmp_path, cluster={"server": f"http://{answering(answer)}"}, user=None)
    monkeypatch.setenv("KUBECONFIG", str(file))
    connect()
    assert seen == [None]


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ({"username": "ann", "password": "x"}, "user name and password"),
        ({"client-certificate-data": encoded("-----BEGIN CERTIFICATE-----")}, "no client key"),
        ({"auth-provider": {"name": "gcp"}}, "auth-provider gcp"),
        ({"exec": {"apiVersion": f"{V1}alpha1", "command": "true"}}, "v1alpha1"),
        ({"exec": {"apiVersion": V1, "command": "true"}}, "true printed no ExecCredential"),
        ({"exec": {"apiVersion": V1, "command": "echo", "args": ["[]"]}}, "echo printed no ExecCredential"),
        ({"exec": {"apiVersion": V1, "command": "echo", "args": ['{"status": {}}']}}, "printed no token"),
        ({"exec": {"apiVersion": V1, "command": "none", "installHint": "get it at x.org"}}, r"\(get it at x.org\)"),
        ({"exec": {"apiVersion": V1, "command": "true", "env": [5]}}, "'env' is not a list"),
    ],
)
def test_a_user_that_gives_no_credentials_is_explained(tmp_path: Path, user: dict[str, Any], reason: str) -> None:
    entry = merged([kubeconfig(tmp_path, cluster={"server": "https://x"}, user=user)]).entry("lab")
    with pytest.raises(CredentialsError, match=reason):
        of_context(entry)


def test_an_oidc_token_of_the_kubeconfig_is_used(tmp_path: Path) -> None:
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": "t"}}}
    entry = merged([kubeconfig(tmp_path, cluster={"server": "https://x"}, user=user)]).entry("lab")
    assert of_context(entry).login.token == "t"


def test_a_context_whose_user_is_not_defined_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = kubeconfig(tmp_path, cluster={"server": "https://x"}, user={"token": "t"})
    file.write_text(file.read_text().replace("name: u", "name: other"))
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(NotLoggedIn, match="no credentials for context lab: it has no user u"):
        connect()
