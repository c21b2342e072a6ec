"""Mounts this machine's Python packages, such as torch, into every container of the lab."""

import importlib.util
import json
import platform
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path

from lab import image, images
from lab.places import IMAGES, PACKAGES

EXCLUDED = "stoker"  # comes with the image of a run


def share(folder: Path | None) -> None:
    """Mount this site-packages folder (default: the one with torch) into new containers."""
    new = PACKAGES.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.symlink_to(folder or _site_packages())
    new.replace(PACKAGES)


def describe() -> None:
    """List the mounted packages in the base image's base.json, because they are not in its layers."""
    packages = metadata.distributions(path=[str(PACKAGES)])
    versions = {package.metadata["Name"]: package.version for package in packages if package.metadata["Name"]}
    versions.pop(EXCLUDED, None)
    libc, version = platform.libc_ver()
    python = ".".join(platform.python_version_tuple()[:2])
    description = {"python": python, "libc": f"{libc} {version}", "packages": versions}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "description").write_text(json.dumps(description))
        image.extend(folder, images.base(), image.layer({"opt/stoker/base.json": folder / "description"}))
        image.push(folder, IMAGES["base"])


def _site_packages() -> Path:
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin:
        return Path(torch.origin).parents[1]
    return Path(sysconfig.get_path("purelib"))
