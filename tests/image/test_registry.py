"""Registry requests: credentials, broken connections, blobs that exist already."""

import base64
import datetime
import hashlib
import http.server
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from stoker.image import upload
from stoker.image.credentials import RegistryLogin, login
from stoker.image.reference import parse
from stoker.image.registry import Registry
from stoker.spec.errors import UserError
from tests.ports import free_port

HOST = "127.0.0.1"
USER, PASSWORD = "stoker", "hunter2-secret"
HTPASSWD = "stoker:$2b$04$NjlJnot5iZ0vWi/apzH05.DPgIt1aPfH6ClPGnKtJ8LFqDWVSbKMK\n"


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def blob_of(content: bytes) -> upload.Blob:
    return upload.of_bytes(content, digest(content))


def docker_config(config: dict[str, Any]) -> None:
    folder = Path(os.environ["DOCKER_CONFIG"])
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))


def helper(folder: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    program = folder / f"docker-credential-{name}"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_an_interrupted_upload_resumes(registry, wire) -> None:
    content, arrived = os.urandom(6 * upload.PIECE), []

    def report(more: int) -> None:
        arrived.append(more)
        if len(arrived) in (2, 4):
            wire.refuse = 2
            wire.cut()

    client = Registry(parse(f"{wire.name}/cut/app"))
    assert upload.send(client, "cut/app", blob_of(content), progress=report)
    assert sum(arrived) == len(content)
    assert wire.sent < len(content) + upload.PIECE
    assert client.blob("cut/app", digest(content)) == content
    assert [path for method, path, _ in registry.requests() if method == "GET" and "/cut/app/blobs/uploads/" in path]


def test_an_interrupted_piece_arrives_complete(wire) -> None:
    content, arrived = os.urandom(3 * upload.PIECE), []
    wire.cut_at = [12_000_000, 25_600_000]
    client = Registry(parse(f"{wire.name}/torn/app"))
    assert upload.send(client, "torn/app", blob_of(content), progress=arrived.append)
    assert not wire.cut_at
    assert sum(arrived) == len(content)
    assert client.blob("torn/app", digest(content)) == content


def test_a_connection_that_breaks_repeatedly_fails_with_a_remedy(wire) -> None:
    content = os.urandom(1 << 20)
    wire.cut_at = [300_000 * number for number in range(1, 20)]
    with pytest.raises(UserError, match=r"broke off 5 times .*push again: it resumes where it stopped"):
        upload.send(Registry(parse(f"{wire.name}/bad/app")), "bad/app", blob_of(content))


def test_a_blob_is_sent_once_and_then_mounted_from_another_repository(registry) -> None:
    target, content = parse(f"{registry.name}/one/app"), os.urandom(1000)
    client = Registry(target)
    assert upload.send(client, "one/app", blob_of(content))
    assert not upload.send(client, "one/app", blob_of(content))
    before = len(registry.requests())
    assert not upload.send(client, "two/app", blob_of(content), mount_from="one/app")
    assert {method for method, _, _ in registry.requests()[before:]} == {"HEAD", "POST"}
    assert client.blob("two/app", digest(content)) == content


def test_a_registry_with_temporary_errors_is_retried(answering) -> None:
    answers = [503, 429, 200]
    host = answering(lambda *_: (answers.pop(0), {"Retry-After": "0"}, b""))
    assert Registry(parse(f"{host}/a")).has_blob("a", digest(b""))
    assert not answers


def test_an_unreachable_registry_or_one_without_tls_is_named_with_a_remedy(registry) -> None:
    with pytest.raises(UserError, match=rf"registry {HOST}:\d+ cannot be reached: .*Check the name"):
        Registry(parse(f"{HOST}:{free_port(HOST)}/a")).ask("GET", "a/tags/list", tries=2)
    encrypted = parse(f"{registry.name}/a")
    with pytest.raises(UserError, match=r"does not use TLS.*written http://"):
        Registry(type(encrypted)(registry=encrypted.registry, repository="a")).ask("GET", "a/tags/list", tries=2)


def test_a_registry_with_circular_redirects_is_named(answering) -> None:
    host = answering(lambda _, path, __: (307, {"Location": path}, b""))
    with pytest.raises(UserError, match=f"registry {host} has a broken address"):
        Registry(parse(f"{host}/a")).manifest("a", "1")


def test_a_blob_with_another_digest_is_refused_at_its_end(answering) -> None:
    client = Registry(parse(f"{answering(lambda *_: (200, {}, b'other'))}/a"))
    with pytest.raises(UserError, match="returned other content than a@sha256:"):
        list(client.parts("a", digest(b"content")))
    assert b"".join(client.parts("a", digest(b"other"))) == b"other"


def test_a_download_that_broke_after_the_last_byte_is_complete(answering) -> None:
    client = Registry(parse(f"{answering(lambda *_: (416, {}, b''))}/a"))
    assert list(client.parts_from("a", digest(b"content"), len(b"content"))) == []
    with pytest.raises(UserError, match="answered 416"):
        list(client.parts_from("a", digest(b"content"), 0))


@pytest.mark.parametrize("body", [b"[]", b"7", b"null"])
def test_a_token_server_that_sends_no_token_is_a_refusal(answering, body: bytes) -> None:
    def answer(_: str, path: str, headers: Any) -> tuple[int, dict[str, str], bytes]:
        realm = f'Bearer realm="http://{headers["Host"]}/token",service="x"'
        return (200, {}, body) if path.startswith("/token") else (401, {"WWW-Authenticate": realm}, b"")

    with pytest.raises(UserError, match="refuses to give a"):
        Registry(parse(f"{answering(answer)}/a")).manifest("a", "1")


@pytest.fixture(scope="module")
def locked(serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A registry with a password."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "htpasswd").write_text(HTPASSWD)
    with serving(folder, {"htpasswd": {"realm": "here", "path": str(folder / "htpasswd")}}) as served:
        yield served


def test_a_password_from_the_docker_config_is_used(locked) -> None:
    target = parse(f"{locked.name}/own/app")
    with pytest.raises(UserError, match=rf"refuses to push to own/app.*docker login {locked.name}"):
        Registry(target).has_blob("own/app", digest(b""))
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    docker_config({"auths": {locked.name: {"auth": auth}}})
    assert upload.send(Registry(target), "own/app", blob_of(b"content"))
    docker_config({"auths": {locked.name: {"auth": base64.b64encode(b"stoker:wrong").decode()}}})
    with pytest.raises(UserError, match="refuses") as refused:
        Registry(target).has_blob("own/app", digest(b""))
    assert "wrong" not in str(refused.value)


@pytest.mark.parametrize("key", ["credHelpers", "credsStore"])
def test_a_helper_is_asked_as_docker_asks_it(locked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    answer = json.dumps({"ServerURL": locked.name, "Username": USER, "Secret": PASSWORD})
    body = f"read host; [ $1 = get ] && [ \"$host\" = {locked.name} ] && echo '{answer}' || exit 1"
    helper(tmp_path / "bin", "test", body, monkeypatch)
    docker_config({key: {locked.name: "test"} if key == "credHelpers" else "test"})
    assert not Registry(parse(f"{locked.name}/own/other")).has_blob("own/other", digest(b""))


def test_a_helper_without_credentials_falls_back_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper(tmp_path / "bin", "empty", "echo credentials not found in native keychain; exit 1", monkeypatch)
    docker_config({"credsStore": "empty", "auths": {"reg.example": {"auth": base64.b64encode(b"a:b:c").decode()}}})
    assert login("reg.example") == RegistryLogin(user="a", password="b:c")
    assert login("other.example") is None


def test_a_missing_or_failing_helper_is_named_without_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker_config({"credHelpers": {"reg.example": "nowhere"}})
    with pytest.raises(UserError, match=r"docker-credential-nowhere, which is not installed"):
        login("reg.example")
    helper(tmp_path / "bin", "bad", "echo hunter2 >&2; exit 3", monkeypatch)
    docker_config({"credHelpers": {"reg.example": "bad"}})
    with pytest.raises(UserError, match="failed with code 3") as failed:
        login("reg.example")
    assert "hunter2" not in str(failed.value)


def test_a_login_is_not_shown_by_its_repr() -> None:
    assert "secret" not in repr(RegistryLogin(user="a", password="secret", identity="secret"))


def test_a_damaged_config_is_named_without_its_content() -> None:
    docker_config({"auths": {"reg.example": {"auth": "!!hunter2!!"}}})
    with pytest.raises(UserError, match="is damaged") as damaged:
        login("reg.example")
    assert "hunter2" not in str(damaged.value)
    (Path(os.environ["DOCKER_CONFIG"]) / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json cannot be read"):
        login("reg.example")


def test_a_config_of_another_shape_is_named_or_ignored() -> None:
    docker_config({"auths": {"reg.example": "hunter2"}})
    with pytest.raises(UserError, match=r"the entry for reg\.example is damaged") as damaged:
        login("reg.example")
    assert "hunter2" not in str(damaged.value)
    docker_config({"auths": ["reg.example"], "credHelpers": "reg.example"})
    assert login("reg.example") is None


class Tokens:
    """A token server: its tokens are signed, and valid for the requested scopes."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tokens")])
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(self.key.public_key())
        builder = (
            builder.serial_number(1)
            .not_valid_before(now - datetime.timedelta(1))
            .not_valid_after(now + datetime.timedelta(1))
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = builder.sign(self.key, hashes.SHA256())
        (folder / "cert.pem").write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        tokens = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                scopes = parse_qs(urlparse(self.path).query)["scope"]
                self.answer(self.headers.get("Authorization", ""), scopes)

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.answer(f"{form['grant_type'][0]} {form['refresh_token'][0]}", form["scope"][0].split(" "))

            def answer(self, authorization: str, scopes: list[str]) -> None:
                tokens.asked.append((authorization, scopes))
                known = (
                    f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}",
                    "refresh_token identity-1",
                )
                body = json.dumps({"token": tokens.token(scopes)} if authorization in known else {}).encode()
                self.send_response(200 if authorization in known else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def token(self, scopes: list[str]) -> str:
        access = [
            {"type": kind, "name": name, "actions": actions.split(",")}
            for kind, name, actions in (scope.split(":") for scope in scopes)
        ]
        der = self.certificate.public_bytes(serialization.Encoding.DER)
        head = {"typ": "JWT", "alg": "RS256", "x5c": [base64.b64encode(der).decode()]}
        now = int(time.time())
        body = {"iss": "tests", "aud": "registry", "exp": now + 60, "nbf": now - 60, "access": access}
        text = ".".join(_urlsafe(json.dumps(part).encode()) for part in (head, body))
        return f"{text}.{_urlsafe(self.key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _urlsafe(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def tokens(serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Tokens]]:
    """A registry that redirects every client to a token server."""
    folder = tmp_path_factory.mktemp("tokens")
    server = Tokens(folder)
    auth = {"realm": f"http://{HOST}:{server.server.server_port}/token", "service": "registry", "issuer": "tests"}
    with serving(folder, {"token": auth | {"rootcertbundle": str(folder / "cert.pem")}}) as served:
        yield served, server
    server.server.shutdown()


@pytest.mark.parametrize("entry", [{"username": USER, "password": PASSWORD}, {"identitytoken": "identity-1"}])
def test_a_token_server_is_asked_for_the_scopes_that_are_needed(
    tokens: tuple[Any, Tokens], entry: dict[str, str]
) -> None:
    served, server = tokens
    target, content = (
        parse(f"{served.name}/by/{'identity' if 'identitytoken' in entry else 'password'}"),
        os.urandom(99),
    )
    with pytest.raises(UserError, match="refuses"):
        Registry(target).has_blob(target.repository, digest(b""))
    docker_config({"auths": {served.name: entry}})
    del server.asked[:]
    client = Registry(target)
    assert upload.send(client, target.repository, blob_of(content))
    assert not upload.send(client, f"{target.repository}-2", blob_of(content), mount_from=target.repository)
    scopes = [scope for _, scope in server.asked]
    assert [f"repository:{target.repository}:pull,push"] in scopes
    both = [f"repository:{target.repository}-2:pull,push", f"repository:{target.repository}:pull"]
    assert both in scopes
    assert len(scopes) == 3  # one for each set of scopes: a token is used as long as it is valid
