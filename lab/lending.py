"""What every container of the lab is lent: the Python packages of this machine's environment, torch among them."""

import importlib.util
import json
import platform
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path

from lab import image, images
from lab.places import IMAGES, PACKAGES

NOT_LENT = "stoker"  # comes with the image of a run


def lend(folder: Path | None) -> None:
    """Containers see these packages from the next one on."""
    new = PACKAGES.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.symlink_to(folder or _site_packages())
    new.replace(PACKAGES)


def tell() -> None:
    """The base image says what it is lent: those who look into its layers would miss it there."""
    found = metadata.distributions(path=[str(PACKAGES)])
    versions = {one.metadata["Name"]: one.version for one in found if one.metadata["Name"]}
    versions.pop(NOT_LENT, None)
    kind, version = platform.libc_ver()
    python = ".".join(platform.python_version_tuple()[:2])
    about = {"python": python, "libc": f"{kind} {version}", "packages": versions}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "about").write_text(json.dumps(about))
        image.extend(folder, images.base(), image.layer({"opt/stoker/base.json": folder / "about"}))
        image.push(folder, IMAGES["base"])


def _site_packages() -> Path:
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin:
        return Path(torch.origin).parents[1]
    return Path(sysconfig.get_path("purelib"))
