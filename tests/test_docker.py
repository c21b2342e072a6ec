"""The base images: what they bring is what Stoker needs, and what they say of themselves is true."""

import json
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from stoker.launch.image.base import Base
from stoker.launch.image.needs import needs
from stoker.spec.data import Data
from stoker.spec.run import RunSpec, Until

DOCKER = Path(__file__).parents[1] / "docker"
FILES = sorted(DOCKER.glob("*.Dockerfile"))


def test_the_pinned_packages_are_all_that_a_run_needs() -> None:
    lines = [Requirement(line) for line in (DOCKER / "requirements.txt").read_text().splitlines() if "==" in line]
    versions = {line.name.replace("_", "-"): str(next(iter(line.specifier)).version) for line in lines}
    base = Base(python="3.12", libc="glibc 2.36", packages=versions)
    assert not [str(need) for need in needs(RunSpec(data=Data(path="x"), until=Until(steps=1))) if not base.has(need)]


def test_a_base_describes_itself_truly() -> None:
    said = json.loads(subprocess.run([sys.executable, DOCKER / "describe.py"], capture_output=True).stdout)
    assert said["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert said["libc"] == " ".join(platform.libc_ver())
    assert said["packages"]["rich"] == metadata.version("rich")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_version_is_pinned_and_the_last_layer_describes_the_image(file: Path) -> None:
    text = file.read_text()
    bases = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    assert len(bases) == 1
    assert re.search(r":\d+\.\d+", bases[0])
    assert re.findall(r"^FROM (\S+)$", text, re.MULTILINE) == ["${BASE}"]
    runs = re.findall(r"^(?:RUN|COPY) .*", text, re.MULTILINE)
    assert runs[-1] == "RUN python3 /opt/stoker/describe.py > /opt/stoker/base.json"
    assert not re.search(r"(?i)(secret|password|token)\s*=", text)
