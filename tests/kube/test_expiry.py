"""Expired credentials are reported as expired, with the date and how to renew them."""

import base64
import json
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.kube import Unreachable, connect
from stoker.kube.errors import Refused, unreachable
from stoker.kube.expiry import expired, token_end
from stoker.kube.kubeconfig import merged
from tests.answers import answers
from tests.kube.certificates import certificate, encoded

YESTERDAY, TOMORROW = datetime.now(UTC) - timedelta(hours=30), datetime.now(UTC) + timedelta(days=1)


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
        "certificate": {"client-certificate-data": encoded(pem), "client-key-data": encoded(key)},
        "file": {"client-certificate": "crt", "client-key": "key"},
        "token": {"token": token(end)},
        "token file": {"tokenFile": "token"},
    }[kind]


@pytest.mark.parametrize("kind", ["certificate", "file", "token", "token file"])
def test_expired_credentials_are_reported_with_the_date(tmp_path: Path, kind: str) -> None:
    file = kubeconfig(tmp_path, user_with(kind, YESTERDAY, tmp_path))
    reported = expired(merged([file]), "lab", in_pod=tmp_path)
    assert reported is not None
    credential = "token" if "token" in kind else "client certificate"
    assert reported.problem == f"the {credential} of context lab expired on {YESTERDAY:%Y-%m-%d %H:%M} UTC, 1 day ago"
    assert "Ask your cluster admin for a new kubeconfig" in reported.remedy
    file = kubeconfig(tmp_path, user_with(kind, TOMORROW, tmp_path))
    assert expired(merged([file]), "lab", in_pod=tmp_path) is None


@pytest.mark.parametrize(
    ("context", "server", "remedy"),
    [
        ("arn:aws:eks:us-w2:123:cluster/team", "https://x", "aws eks update-kubeconfig --region us-w2 --name team"),
        ("team", "https://x.yl4.us-west-2.eks.amazonaws.com", "aws eks update-kubeconfig --name CLUSTER"),
        ("gke_proj_us-c1_team", "https://x", "get-credentials team --location us-c1 --project proj"),
        ("team", "https://x.hcp.azmk8s.io:443", "az aks get-credentials --resource-group GROUP --name team"),
    ],
)  # fmt: skip
def test_the_remedy_renews_the_credentials_of_known_kinds_of_clusters(
    tmp_path: Path, context: str, server: str, remedy: str
) -> None:
    file = kubeconfig(tmp_path, {"token": token(YESTERDAY)}, server=server, context=context)
    reported = expired(merged([file]), context, in_pod=tmp_path)
    assert reported is not None
    assert remedy in reported.remedy


@pytest.mark.parametrize(
    "user",
    [{}, {"token": "opaque"}, {"token": token(None)}, {"client-certificate-data": "?"}, {"tokenFile": "gone"}, "x"],
)
def test_credentials_without_an_expiry_date_are_not_called_expired(tmp_path: Path, user: Any) -> None:
    assert expired(merged([kubeconfig(tmp_path, user)]), "lab", in_pod=tmp_path) is None
    assert expired(merged([kubeconfig(tmp_path, user)]), "another", in_pod=tmp_path) is None


def test_an_expired_token_of_a_pod_is_reported(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(token(YESTERDAY))
    reported = expired(merged([]), None, in_pod=tmp_path)
    assert reported is not None
    assert "token of this pod's service account expired" in reported.problem
    assert token_end("no.token") is None


def test_a_401_for_expired_credentials_names_the_expiry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answering: Callable[..., str]
) -> None:
    host = answering(lambda *_: (401, {"Content-Type": "application/json"}, b'{"message": "Unauthorized"}'))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, {"token": token(YESTERDAY)}, server=f"http://{host}")))
    with pytest.raises(Refused, match="the token of context lab expired on"):
        connect()
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, {"token": token(TOMORROW)}, server=f"http://{host}")))
    with pytest.raises(Refused, match="does not know these credentials"):
        connect()


def test_an_expired_server_certificate_is_reported_as_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem, key = certificate(YESTERDAY)
    (tmp_path / "both").write_text(pem + key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "both")
    with answers(lambda *_: (200, {}, b"{}"), tls) as host:
        file = kubeconfig(tmp_path, {"token": "t"}, server=f"https://{host}")
        values = yaml.safe_load(file.read_text())
        values["clusters"][0]["cluster"]["certificate-authority-data"] = encoded(pem)
        file.write_text(yaml.safe_dump(values))
        monkeypatch.setenv("KUBECONFIG", str(file))
        with pytest.raises(Unreachable, match=r"certificate of the API server .* has expired"):
            connect()


def test_a_certificate_that_is_not_valid_yet_points_to_the_clock() -> None:
    error = ssl.SSLCertVerificationError("certificate is not yet valid")
    error.verify_code = 9  # as OpenSSL sets it
    reported = unreachable(error, server="https://x", cluster="context lab")
    assert "is not valid yet" in reported.problem
    assert "clock" in reported.remedy
