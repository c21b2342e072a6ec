"""Creates the certificates and kubeconfigs of the cluster."""

import base64
import os
import subprocess
from pathlib import Path

import yaml

from lab.places import API_PORT, API_SERVICE, CONTROL, NODES, STATE

FOLDER = STATE / "pki"
CA = FOLDER / "ca.crt"
ACCOUNTS = FOLDER / "accounts.key"
"""Signs the tokens of service accounts."""
SERVER = f"https://{CONTROL}:{API_PORT}"
IDENTITIES = {  # certificate -> user and group, as in Kubernetes' built-in roles
    "apiserver": ("kube-apiserver", "system:masters"),
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    "lab": ("lab", "system:masters"),
    **{node: (f"system:node:{node}", "system:nodes") for node in NODES},
}


def make() -> None:
    FOLDER.mkdir(mode=0o700, parents=True)
    ca, days = FOLDER / "ca.key", ["-days", "365"]
    root = ["-subj", "/CN=stoker-lab", "-addext", "basicConstraints=critical,CA:TRUE", "-out", str(CA)]
    _openssl("req", "-x509", *_new(ca), *days, *root)
    _openssl("genrsa", "-out", str(ACCOUNTS), "2048")
    services = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    names = [f"DNS:{name}" for name in services] + [f"IP:{address}" for address in (CONTROL, API_SERVICE, "127.0.0.1")]
    for name, (user, group) in IDENTITIES.items():
        subject = f"/O={group}/CN={user}" if group else f"/CN={user}"
        extra = ["-addext", f"subjectAltName={','.join(names)}"] if name == "apiserver" else []
        signed = ["-CA", str(CA), "-CAkey", str(ca), "-addext", "basicConstraints=critical,CA:FALSE"]
        out = ["-out", str(certificate(name))]
        _openssl("req", "-x509", *_new(key(name)), *days, "-subj", subject, *signed, *extra, *out)
    for name in IDENTITIES:
        kubeconfig(name).write_text(yaml.safe_dump(_config(name)))
        kubeconfig(name).chmod(0o600)


def webhook(service: str, ca_name: str) -> dict[str, str]:
    """The data of the certificate Secret of a webhook. The operator would take minutes to create its own."""
    ca, key = FOLDER / f"{ca_name}.key", FOLDER / f"{service}.key"
    _openssl("genrsa", "-traditional", "-out", str(ca), "2048")  # the only format that the operator reads
    days, root = ["-days", "3650"], FOLDER / f"{ca_name}.crt"
    names = ["-subj", f"/CN={ca_name}", "-addext", f"subjectAltName=DNS:{ca_name}"]
    rights = ["-addext", "basicConstraints=critical,CA:TRUE"]
    _openssl("req", "-x509", "-key", str(ca), *days, *names, *rights, "-out", str(root))
    names = ["-subj", f"/CN={service}", "-addext", f"subjectAltName=DNS:{service}"]
    rights = ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", "extendedKeyUsage=serverAuth"]
    signed, out = ["-CA", str(root), "-CAkey", str(ca)], FOLDER / f"{service}.crt"
    _openssl("req", "-x509", *_new(key), *days, *names, *rights, *signed, "-out", str(out))
    return {"ca.crt": _text(root), "ca.key": _text(ca), "tls.crt": _text(out), "tls.key": _text(key)}


def certificate(name: str) -> Path:
    return FOLDER / f"{name}.crt"


def key(name: str) -> Path:
    return FOLDER / f"{name}.key"


def kubeconfig(name: str) -> Path:
    return FOLDER / f"{name}.kubeconfig"


def _config(name: str) -> dict[str, object]:
    user = {"client-certificate-data": _text(certificate(name)), "client-key-data": _text(key(name))}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": SERVER, "certificate-authority-data": _text(CA)}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": name}}],
        "current-context": "lab",
    }


def _new(file: Path) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-keyout", str(file)]


def _text(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def _openssl(*args: str) -> None:
    env = os.environ | {"OPENSSL_CONF": "/dev/null"}
    done = subprocess.run(["openssl", *args], capture_output=True, text=True, env=env)
    if done.returncode:
        raise RuntimeError(f"openssl {' '.join(args)}: {done.stderr.strip()}")
