"""A real registry on this machine, a connection to it that can be cut, and small real images."""

import gzip
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from stoker.spec.run import ScriptSpec
from tests.answers import Answer
from tests.image.docker_registry import Served, serve
from tests.image.small_images import (
    OS_LAYER,
    PYTHON_LAYER,
    SITE,
    Files,
    layer_of,
    manifest_of,
    packages,
    push_image,
    repository_of,
)
from tests.wire import Wire

Make = Callable[..., str]


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("registry")) as served:
        yield served


@pytest.fixture(scope="session")
def serving() -> Callable[..., Any]:
    """(folder, how it is locked) -> a registry of its own, as a context."""
    return serve


@pytest.fixture
def repository(registry: Served) -> str:
    """A new repository name."""
    return f"{registry.name}/team/app-{uuid.uuid4().hex[:8]}"


@pytest.fixture(autouse=True)
def no_credentials_and_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's credentials and cache are not used."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def wire(registry: Served) -> Iterator[Wire]:
    wire = Wire(registry.port)
    yield wire
    wire.close()


@pytest.fixture
def lying(registry: Served, answering: Callable[..., str]) -> Callable[[str, str], str]:
    """(image, another) -> the image at a host that serves the other's last layer instead of its own."""

    def start(name: str, other: str) -> str:
        true, false = (manifest_of(registry, image)["layers"][-1]["digest"] for image in (name, other))

        def answer(method: str, path: str, headers: Mapping[str, str]) -> Answer:
            if path.endswith(true):
                url = f"http://{registry.name}/v2/{repository_of(other)}/blobs/{false}"
                # longer than what a reader reads that stops at the end of the tar
                return 200, {}, requests.get(url, timeout=60).content + gzip.compress(bytes(3 << 20))
            response = requests.request(method, f"http://{registry.name}{path}", headers=dict(headers), timeout=60)
            return response.status_code, {"Content-Type": response.headers["Content-Type"]}, response.content

        return name.replace(registry.name, answering(answer))

    return start


@pytest.fixture
def parts() -> SimpleNamespace:
    """Layers for images."""
    return SimpleNamespace(os=OS_LAYER, python=PYTHON_LAYER, packages=packages, site=SITE)


@pytest.fixture
def pushing() -> Make:
    """(registry, layers, repository=…) -> the image's name."""
    return push_image


@pytest.fixture
def image(registry: Served) -> Make:
    """image(*layers) pushes a base image of them, and returns its name."""

    def make(*layers: Files, **more: Any) -> str:
        name = f"bases/{uuid.uuid4().hex[:8]}"
        return push_image(registry, [layer_of(files) for files in layers], repository=name, **more)

    return make


@pytest.fixture
def base(image: Make) -> str:
    """A base with everything that Stoker needs."""
    return image(OS_LAYER, PYTHON_LAYER, packages())


@pytest.fixture
def script(tmp_path: Path) -> ScriptSpec:
    """A folder of code, and a run of it."""
    folder = tmp_path / "code"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("import lib.model\nprint('hello')\n")
    (folder / "lib" / "model.py").write_text("layers = 2\n")
    return ScriptSpec(script=str(folder / "train.py"))
