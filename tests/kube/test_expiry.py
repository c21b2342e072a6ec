"""Credentials that have expired are called so, with since when and how to renew them."""

import base64
import json
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from stoker.kube import Unreachable, connect
from stoker.kube.expiry import expired, token_end
from stoker.kube.refusals import Refused, unreachable
from tests.answers import answers

YESTERDAY, TOMORROW = datetime.now(UTC) - timedelta(hours=30), datetime.now(UTC) + timedelta(days=1)


def certificate(end: datetime) -> tuple[str, str]:
    """PEM of a certificate that ends then, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "127.0.0.1")])
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, end - timedelta(days=9), end)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = made.add_extension(here, critical=False)
    signed = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return signed, key.private_bytes(serialization.Encoding.PEM, *plain).decode()


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def token(end: datetime | None) -> str:
    body = json.dumps({"sub": "x"} | ({"exp": int(end.timestamp())} if end else {}))
    return f"e30.{base64.urlsafe_b64encode(body.encode()).decode().rstrip('=')}.c2ln"


def kubeconfig(folder: Path, user: dict[str, Any], *, server: str = "http://127.0.0.1:1", context: str = "lab") -> Path:
    values = {
        "current-context": context,
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": context, "context": {"cluster": "c", "user": "u"}}],
    }
    file = folder / "config"
    file.write_text(yaml.safe_dump(values))
    return file


def user_with(kind: str, end: datetime, folder: Path) -> dict[str, Any]:
    pem, key = certificate(end)
    (folder / "crt").write_text(pem)
    (folder / "key").write_text(key)
    (folder / "token").write_text(token(end) + "\n")
    return {
        "certificate": {"client-certificate-data": coded(pem), "client-key-data": coded(key)},
        "file": {"client-certificate": "crt", "client-key": "key"},
        "token": {"token": token(end)},
        "token file": {"tokenFile": "token"},
    }[kind]


@pytest.mark.parametrize("kind", ["certificate", "file", "token", "token file"])
def test_what_has_expired_is_told_since_when(tmp_path: Path, kind: str) -> None:
    file = kubeconfig(tmp_path, user_with(kind, YESTERDAY, tmp_path))
    found = expired([file], "lab", in_pod=tmp_path)
    assert found is not None
    what = "token" if "token" in kind else "client certificate"
    assert found.problem == f"the {what} of context lab expired on {YESTERDAY:%Y-%m-%d %H:%M} UTC, 1 day ago"
    assert "Ask your cluster admin for a new kubeconfig" in found.remedy
    file = kubeconfig(tmp_path, user_with(kind, TOMORROW, tmp_path))
    assert expired([file], "lab", in_pod=tmp_path) is None


@pytest.mark.parametrize(
    ("context", "server", "remedy"),
    [
        ("arn:aws:eks:us-w2:123:cluster/team", "https://x", "aws eks update-kubeconfig --region us-w2 --name team"),
        ("team", "https://x.yl4.us-west-2.eks.amazonaws.com", "aws eks update-kubeconfig --name CLUSTER"),
        ("gke_proj_us-c1_team", "https://x", "get-credentials team --location us-c1 --project proj"),
        ("team", "https://x.hcp.azmk8s.io:443", "az aks get-credentials --resource-group GROUP --name team"),
    ],
)  # fmt: skip
def test_how_to_renew_it_is_told_where_the_kind_of_cluster_is_known(
    tmp_path: Path, context: str, server: str, remedy: str
) -> None:
    file = kubeconfig(tmp_path, {"token": token(YESTERDAY)}, server=server, context=context)
    found = expired([file], context, in_pod=tmp_path)
    assert found is not None
    assert remedy in found.remedy


@pytest.mark.parametrize(
    "user",
    [{}, {"token": "opaque"}, {"token": token(None)}, {"client-certificate-data": "?"}, {"tokenFile": "gone"}, "x"],
)
def test_nothing_is_made_up_of_credentials_that_tell_no_end(tmp_path: Path, user: Any) -> None:
    assert expired([kubeconfig(tmp_path, user)], "lab", in_pod=tmp_path) is None
    assert expired([kubeconfig(tmp_path, user)], "another", in_pod=tmp_path) is None


def test_a_pods_own_token_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(token(YESTERDAY))
    found = expired([], None, in_pod=tmp_path)
    assert found is not None
    assert "token of this pod's service account expired" in found.problem
    assert token_end("no.token") is None


def test_a_server_that_refuses_what_has_expired_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answering: Callable[..., str]
) -> None:
    host = answering(lambda *_: (401, {"Content-Type": "application/json"}, b'{"message": "Unauthorized"}'))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, {"token": token(YESTERDAY)}, server=f"http://{host}")))
    with pytest.raises(Refused, match="the token of context lab expired on"):
        connect()
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, {"token": token(TOMORROW)}, server=f"http://{host}")))
    with pytest.raises(Refused, match="does not know these credentials"):
        connect()


def test_a_servers_certificate_that_has_expired_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem, key = certificate(YESTERDAY)
    (tmp_path / "both").write_text(pem + key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "both")
    with answers(lambda *_: (200, {}, b"{}"), tls) as host:
        file = kubeconfig(tmp_path, {"token": "t"}, server=f"https://{host}")
        values = yaml.safe_load(file.read_text())
        values["clusters"][0]["cluster"]["certificate-authority-data"] = coded(pem)
        file.write_text(yaml.safe_dump(values))
        monkeypatch.setenv("KUBECONFIG", str(file))
        with pytest.raises(Unreachable, match=r"certificate of the API server .* has expired"):
            connect()


def test_a_clock_that_is_slow_is_not_taken_for_another_cluster() -> None:
    error = OSError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate is not yet valid")
    said = unreachable(error, server="https://x", who="context lab")
    assert "is not valid yet" in said.problem
    assert "clock" in said.remedy
