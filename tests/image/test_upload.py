"""Blobs sent from one registry to another, and registries with errors."""

import datetime
import hashlib
import ipaddress
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stoker.image import registry as wire_protocol
from stoker.image import upload
from stoker.image.reference import Reference, parse
from stoker.image.registry import Registry
from stoker.spec.errors import UserError

HOST = "127.0.0.1"


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_a_blob_is_read_once_from_a_registry_without_range_requests(
    registry, answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "PIECE", 1 << 16)
    content, asked = os.urandom(10 * upload.PIECE + 1), []

    def whole(method: str, path: str, _: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        asked.append((method, path))
        return 200, {}, content

    origin, target = Registry(parse(f"{answering(whole)}/a")), Registry(parse(f"{registry.name}/carried/whole"))
    blob = upload.of_registry(origin, "a", digest(content), len(content))
    assert upload.send(target, "carried/whole", blob)
    assert len(asked) == 1
    assert target.blob("carried/whole", digest(content)) == content


def test_an_interrupted_download_resumes(registry, wire, monkeypatch: pytest.MonkeyPatch) -> None:
    content, arrived = os.urandom(16 << 20), []
    target = Registry(parse(f"{registry.name}/carried/cut"))
    upload.send(target, "carried/from", upload.of_bytes(content, digest(content)))
    monkeypatch.setattr(upload, "PIECE", 1 << 20)

    def report(more: int) -> None:
        arrived.append(more)
        if len(arrived) == 2:
            wire.cut()

    origin = Registry(parse(f"{wire.name}/carried/from"))
    blob = upload.of_registry(origin, "carried/from", digest(content), len(content))
    assert upload.send(target, "carried/cut", blob, progress=report)
    assert target.blob("carried/cut", digest(content)) == content
    asked = [status for method, path, status in registry.requests() if method == "GET" and "/carried/from/" in path]
    assert asked == [200, 206]


def test_an_upload_that_the_registry_forgot_restarts_where_needed(answering) -> None:
    content = os.urandom(100)
    origin = Registry(parse(f"{answering(lambda *_: (200, {}, content))}/a"))
    blob = upload.of_registry(origin, "a", digest(content), len(content))
    assert blob.read(0, 60) + blob.read(60, 40) == content
    assert blob.read(30, 20) == content[30:50]
    assert blob.read(50, 80) == content[50:]


def test_a_layer_that_is_shorter_than_announced_is_refused(registry, answering) -> None:
    origin = Registry(parse(f"{answering(lambda *_: (200, {}, b'short'))}/a"))
    blob = upload.of_registry(origin, "a", digest(b"longer"), 6)
    with pytest.raises(UserError, match=r"layer sha256:\w+ ends after 5 bytes, and its image says 6\. Push"):
        upload.send(Registry(parse(f"{registry.name}/carried/short")), "carried/short", blob)


@pytest.mark.parametrize("headers", [{}, {"Location": "http://[nowhere"}])
def test_a_registry_without_an_upload_location_is_named(answering, headers: dict[str, str]) -> None:
    host = answering(lambda method, *_: (404 if method == "HEAD" else 202, headers, b""))
    with pytest.raises(UserError, match="does not say where to upload a layer"):
        upload.send(Registry(parse(f"{host}/a")), "a", upload.of_bytes(b"x", digest(b"x")))


@pytest.mark.parametrize("exists", [True, False])
def test_an_upload_whose_last_request_was_repeated_is_complete_if_the_blob_exists(answering, exists: bool) -> None:
    heads = [404, 200 if exists else 404]

    def answer(method: str, *_: object) -> tuple[int, dict[str, str], bytes]:
        status = heads.pop(0) if method == "HEAD" else {"POST": 202, "PATCH": 202, "PUT": 404}[method]
        return status, {"Location": "/v2/a/blobs/uploads/1"}, b""

    target, blob = Registry(parse(f"{answering(answer)}/a")), upload.of_bytes(b"x", digest(b"x"))
    if exists:
        assert upload.send(target, "a", blob)
    else:
        with pytest.raises(UserError, match=r"did not accept layer sha256:\w+\. Push again"):
            upload.send(target, "a", blob)
    assert not heads


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Of a server on this machine, whose certificate is trusted here."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = (
        builder.serial_number(1)
        .not_valid_before(now - datetime.timedelta(1))
        .not_valid_after(now + datetime.timedelta(1))
    )
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    file = tmp_path / "server.pem"
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, *plain) + certificate.public_bytes(serialization.Encoding.PEM)
    )
    monkeypatch.setattr(wire_protocol, "_certificates", lambda: ssl.create_default_context(cafile=file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


def test_requests_stay_encrypted_whatever_address_the_registry_returns(answering, tls) -> None:
    asked = []

    def behind_a_proxy(method: str, _: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        asked.append(method)
        place = {"Location": f"http://{headers['Host']}/v2/a/blobs/uploads/1"}
        return {"HEAD": 404, "POST": 202, "PATCH": 202, "PUT": 201}[method], place, b""

    encrypted = Reference(registry=answering(behind_a_proxy, tls), repository="a")
    assert upload.send(Registry(encrypted), "a", upload.of_bytes(b"x", digest(b"x")))
    assert asked == ["HEAD", "POST", "PATCH", "PUT"]


def test_a_redirect_from_tls_to_plain_http_is_not_followed(answering, tls) -> None:
    seen = []

    def listen(method: str, _: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        seen.append((method, headers))
        return 202, {}, b""

    elsewhere = {"Location": f"http://{answering(listen)}/v2/a/blobs/uploads/1"}
    host = answering(lambda method, *_: (404 if method == "HEAD" else 202, elsewhere, b""), tls)
    with pytest.raises(UserError, match=r"redirects to http://127\.0\.0\.1:\d+, without encryption"):
        upload.send(Registry(Reference(registry=host, repository="a")), "a", upload.of_bytes(b"x", digest(b"x")))
    assert not seen
