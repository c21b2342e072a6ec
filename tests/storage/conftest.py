"""Real stores on this machine, and a wire to them that can be cut."""

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path

import boto3
import pytest
import requests

from lab import golang
from tests.answers import Answer, answers
from tests.ports import free_port
from tests.server import HOST, served
from tests.wire import Wire

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",  # only the stores here get requests
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "NO_GCE_CHECK": "true",
}


@pytest.fixture(scope="session")
def moto() -> Iterator[int]:
    """moto's S3 server, on this port; it lists 100 objects at a time."""
    port = free_port(HOST)
    code = "import os; os.environ['MOTO_S3_DEFAULT_MAX_KEYS'] = '100'; from moto.server import main; main()"
    with served([sys.executable, "-c", code, "-H", HOST, "-p", str(port)], f"http://{HOST}:{port}/moto-api/"):
        yield port


@pytest.fixture(scope="session")
def fake_gcs() -> Iterator[int]:
    """fake-gcs-server, on this port."""
    port = free_port(HOST)
    server = str(golang.gcs())
    argv = [server, "-backend", "memory", "-scheme", "http", "-host", HOST, "-port", str(port), "-log-level", "error"]
    with served(argv, f"http://{HOST}:{port}/storage/v1/b"):
        yield port


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials, endpoints or cache of the user."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "CLOUDSDK_", "STORAGE_"))]:
        monkeypatch.delenv(name)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def wire(request: pytest.FixtureRequest, bucket: str) -> Wire:
    """The connection to the bucket."""
    wire: Wire = request.getfixturevalue(f"{bucket[:2]}_wire")
    return wire


@pytest.fixture
def s3_wire(moto: int, nowhere: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:  # noqa: ARG001 (it is set)
    wire = Wire(moto)
    monkeypatch.setenv("AWS_ENDPOINT_URL", wire.url)
    yield wire
    wire.close()


@pytest.fixture
def gs_wire(fake_gcs: int, nowhere: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:  # noqa: ARG001
    wire = Wire(fake_gcs)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", wire.url)
    yield wire
    wire.close()


@pytest.fixture
def s3(moto: int, s3_wire: Wire) -> str:  # noqa: ARG001 (it is reached by that)
    """An empty bucket."""
    name = f"stoker-{uuid.uuid4().hex[:12]}"
    boto3.client("s3", endpoint_url=f"http://{HOST}:{moto}").create_bucket(Bucket=name)
    return f"s3://{name}/some/runs"


@pytest.fixture
def gs(fake_gcs: int, gs_wire: Wire) -> str:  # noqa: ARG001 (it is reached by that)
    """An empty bucket."""
    name = f"stoker-{uuid.uuid4().hex[:12]}"
    requests.post(f"http://{HOST}:{fake_gcs}/storage/v1/b", json={"name": name}, timeout=60).raise_for_status()
    return f"gs://{name}/some/runs"


@pytest.fixture(params=["s3", "gs"])
def bucket(request: pytest.FixtureRequest) -> str:
    """A bucket of each kind in turn."""
    url: str = request.getfixturevalue(request.param)
    return url


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Switches to the cache of another machine."""
    return lambda name: monkeypatch.setenv("STOKER_CACHE", str(tmp_path / f"cache-{name}"))


@pytest.fixture
def forbidding() -> Iterator[str]:
    """A server that answers 403 to every request, as S3 and as Google's API."""

    def forbid(_: str, path: str, __: Message) -> Answer:
        xml = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        return 403, {}, b'{"error": {"code": 403, "message": "no"}}' if "/storage/v1/" in path else xml

    with answers(forbid) as host:
        yield f"http://{host}"
