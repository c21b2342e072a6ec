"""Turns a kubeconfig entry, or a pod's service account, into an HTTP client that is logged in."""

import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx2

from stoker.kube.kubeconfig import ContextEntry, Entry

LOGIN_TIMEOUT_S = 120.0  # a login command may open a browser
REST_TIMEOUT_S = 5.0  # for the rest of its output: a browser that it has opened may keep the pipe open
READ_BYTES = 1 << 16
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
TIMEOUT = httpx2.Timeout(60, connect=10)
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=20)  # a command in a pod holds a connection


class CredentialsError(Exception):
    """A kubeconfig entry that gives no credentials; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterLogin:
    """What authenticates you to the server."""

    token: str | None = None
    certificate: bytes | None = None
    """PEM, as are all certificates and keys here."""
    key: bytes | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """What a client needs to talk to one API server."""

    server: str
    login: ClusterLogin
    ca: bytes | None = None
    """None: the certificates that this machine trusts."""
    verify: bool = True
    proxy: str | None = None
    tls_server_name: str | None = None
    """The name in the server's certificate, where its address has another."""

    def client(self) -> httpx2.Client:
        token, name = self.login.token, self.tls_server_name
        authorization = {"Authorization": f"Bearer {token.strip()}"} if token else {}

        def set_server_name(request: httpx2.Request) -> None:
            request.extensions["sni_hostname"] = name

        return httpx2.Client(
            base_url=self.server,
            headers={"User-Agent": "stoker"} | authorization,
            verify=self._tls(),
            timeout=TIMEOUT,
            limits=LIMITS,
            proxy=self.proxy,
            event_hooks={"request": [set_server_name] if name else []},
        )

    def _tls(self) -> ssl.SSLContext:
        if self.ca is None or not self.verify:
            context = httpx2.create_ssl_context(verify=self.verify)
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(cadata=self.ca.decode("ascii", errors="ignore"))
        if self.login.certificate is not None:
            # ssl reads keys only from files
            with tempfile.NamedTemporaryFile(prefix="stoker-") as file:
                file.write(self.login.certificate + b"\n" + (self.login.key or b""))
                file.flush()
                context.load_cert_chain(file.name)
        return context


def of_context(entry: ContextEntry) -> Credentials:
    """Runs the login command where the kubeconfig names one. Raises CredentialsError, ValueError or OSError."""
    cluster = entry.cluster
    server = _text(cluster, "server")
    if server is None:
        raise CredentialsError("its cluster entry is missing 'server'")
    return Credentials(
        server=server,
        login=_login(entry),
        ca=pem(cluster, "certificate-authority", entry.cluster_folder),
        verify=not cluster.get("insecure-skip-tls-verify"),
        proxy=_text(cluster, "proxy-url"),
        tls_server_name=_text(cluster, "tls-server-name"),
    )


def of_pod(folder: Path) -> Credentials:
    """Those of the service account that Kubernetes mounts at `folder`; the token there is renewed every hour."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
    if not host or not port:
        raise CredentialsError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set in this pod")
    return Credentials(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        login=ClusterLogin(token=(folder / "token").read_text()),
        ca=(folder / "ca.crt").read_bytes(),
    )


def _login(entry: ContextEntry) -> ClusterLogin:
    user, folder = entry.user, entry.user_folder
    if "exec" in user:
        return _run_login(user["exec"], entry)
    if "username" in user or "password" in user:
        raise CredentialsError("it has a user name and password, which Kubernetes does not accept since version 1.19")
    certificate, key = pem(user, "client-certificate", folder), pem(user, "client-key", folder)
    if certificate and not key and b"PRIVATE KEY" not in certificate:
        raise CredentialsError("its user has a client certificate, but no client key")
    return ClusterLogin(token=_token(user, folder), certificate=certificate, key=key)


def _token(user: Entry, folder: Path) -> str | None:
    if path := _text(user, "tokenFile"):
        return (folder / path).read_text()
    if "auth-provider" in user:
        provider = _mapping(user, "auth-provider")
        if provider.get("name") != "oidc":
            raise CredentialsError(f"Kubernetes does not know auth-provider {provider.get('name')} since version 1.26")
        return _text(_mapping(provider, "config"), "id-token")
    return str(user["token"]) if user.get("token") else None


def _run_login(command: Any, entry: ContextEntry) -> ClusterLogin:
    """A client-go credential plugin, such as `aws eks get-token`: it prints an ExecCredential."""
    if not isinstance(command, dict):
        raise CredentialsError("its user's 'exec' is not {apiVersion: …, command: …}")
    version, program = _needed(command, "apiVersion"), _needed(command, "command")
    if version not in EXEC_VERSIONS:
        raise CredentialsError(f"its login command has apiVersion {version}, which is none of {EXEC_VERSIONS}")
    if os.sep in program:
        program = str(entry.user_folder / program)
    interactive = command.get("interactiveMode") != "Never" and sys.stdin is not None and sys.stdin.isatty()
    cluster = {"cluster": _shown_to_plugin(entry)} if command.get("provideClusterInfo") else {}
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": interactive, **cluster}}
    variables = _variables(command) | {"KUBERNETES_EXEC_INFO": json.dumps(info)}
    try:
        process = subprocess.Popen(
            [program, *map(str, command.get("args") or [])],
            env=os.environ | variables,
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except FileNotFoundError:
        hint = f" ({command['installHint']})" if command.get("installHint") else ""
        raise CredentialsError(f"the login command {program} is not installed{hint}") from None
    output, errors = _output(process, program)
    if process.returncode:
        raise CredentialsError(f"the login command {program} ended with exit code {process.returncode}: {errors}")
    return _printed_login(program, output)


def _output(process: subprocess.Popen[bytes], program: str) -> tuple[str, str]:
    """What it prints to stdout and stderr. A terminal shows the latter at once: a page to open, or a code to enter."""
    assert process.stdout is not None
    assert process.stderr is not None
    stdout, stderr = bytearray(), bytearray()
    show = sys.stderr is not None and sys.stderr.isatty()
    readers = [
        threading.Thread(target=_read, args=(process.stdout, stdout, False), daemon=True),
        threading.Thread(target=_read, args=(process.stderr, stderr, show), daemon=True),
    ]
    try:
        for reader in readers:
            reader.start()
        process.wait(LOGIN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise CredentialsError(f"the login command {program} took more than {LOGIN_TIMEOUT_S:.0f} seconds") from None
    finally:
        process.kill()  # also after Ctrl-C; without effect on a command that has ended
        process.wait()
    for reader in readers:
        reader.join(REST_TIMEOUT_S)
    return bytes(stdout).decode(), bytes(stderr).decode(errors="replace")


def _read(stream: IO[bytes], into: bytearray, show: bool) -> None:
    while block := os.read(stream.fileno(), READ_BYTES):
        into += block
        if show:
            sys.stderr.write(block.decode(errors="replace"))
            sys.stderr.flush()


def _variables(command: Entry) -> dict[str, str]:
    try:
        return {str(variable["name"]): str(variable["value"]) for variable in command.get("env") or []}
    except (LookupError, TypeError):
        raise CredentialsError("its login command's 'env' is not a list of {name: …, value: …}") from None


def _printed_login(program: str, output: str) -> ClusterLogin:
    try:
        status = json.loads(output)["status"]
        token, certificate, key = (status.get(k) for k in ("token", "clientCertificateData", "clientKeyData"))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise CredentialsError(f"the login command {program} printed no ExecCredential") from None
    if not token and not (certificate and key):
        raise CredentialsError(f"the login command {program} printed no token and no certificate with its key")
    return ClusterLogin(
        token=str(token) if token else None,
        certificate=str(certificate).encode() if certificate and key else None,
        key=str(key).encode() if certificate and key else None,
    )


def _shown_to_plugin(entry: ContextEntry) -> Entry:
    """The cluster, as a login command that asks for it gets it."""
    ca = pem(entry.cluster, "certificate-authority", entry.cluster_folder)
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
    cluster = {name: entry.cluster[name] for name in names if name in entry.cluster}
    return cluster | ({"certificate-authority-data": base64.b64encode(ca).decode()} if ca else {})


def pem(entry: Entry, name: str, folder: Path) -> bytes | None:
    """Written in the kubeconfig itself, in base64 or plain, or in a file that it names."""
    if data := _text(entry, f"{name}-data"):
        return data.encode() if "-----" in data else base64.b64decode(data)
    path = _text(entry, name)
    return (folder / path).read_bytes() if path else None


def _text(entry: Entry, name: str) -> str | None:
    value = entry.get(name) or None
    if value is not None and not isinstance(value, str):
        raise CredentialsError(f"its '{name}' is {value!r}, which is no text")
    return value


def _needed(entry: Entry, name: str) -> str:
    value = _text(entry, name)
    if value is None:
        raise CredentialsError(f"its login command is missing '{name}'")
    return value


def _mapping(entry: Entry, name: str) -> Entry:
    value = entry.get(name)
    if not isinstance(value, dict):
        raise CredentialsError(f"its '{name}' is not a mapping")
    return value
