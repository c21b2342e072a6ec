"""The container tool of this machine (docker, podman, buildah): builds a Dockerfile, runs an image."""

import hashlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from stoker.image.ignore import Ignore
from stoker.image.pull import normal_platform
from stoker.image.reference import Reference, parse_repository
from stoker.image.registry import Registry
from stoker.spec.errors import UserError

TAG_DIGITS = 16
INFO_TIMEOUT_S = 20


def runner() -> str | None:
    """A tool that can run a container now."""
    return next((tool for tool in ("podman", "docker") if _answers(tool)), None)


def run_command(
    tool: str, image: Reference, platform: str, command: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    first, *rest = command
    variables = [option for name, value in environment.items() for option in ("--env", f"{name}={value}")]
    plain = ["--tls-verify=false"] if tool == "podman" and image.plain else []  # docker's daemon has its own list
    return [tool, "run", "--rm", *plain, "--platform", platform, *variables, "--entrypoint", first, str(image), *rest]


def build_file(file: Path, *, to: str, platform: str) -> Reference:
    """Builds a Dockerfile in its folder; the tag is derived from the content."""
    if not file.is_file():
        raise UserError(f"{file} does not exist", remedy="Name the Dockerfile: --file PATH")
    platform = normal_platform(platform)
    image = parse_repository(to).at(tag=_tag(file, platform))
    tool = _builder()
    subcommand = "bud" if tool == "buildah" else "build"
    _run(
        [
            tool,
            subcommand,
            "--platform",
            platform,
            "--file",
            str(file),
            "--tag",
            str(image),
            str(file.absolute().parent),
        ]
    )
    return image


def push_built(image: Reference) -> Reference:
    """Pushes what `build_file` built. Returns its digest too."""
    tool = _builder()
    plain = ["--tls-verify=false"] if tool == "buildah" and image.plain else []
    _run([tool, "push", *plain, str(image), *([f"docker://{image}"] if tool == "buildah" else [])])
    with closing(Registry(image)) as registry:
        return image.at(tag=image.tag, digest=registry.digest(image.repository, image.version))


def _builder() -> str:
    if _answers("docker"):
        return "docker"
    if shutil.which("buildah"):
        return "buildah"
    raise UserError(
        "building a Dockerfile needs docker or buildah, and neither is installed",
        remedy="Install one of them; without --file none is needed: the code is added to a base image",
    )


def _answers(tool: str) -> bool:
    """Whether the program is installed, and its daemon runs if it needs one."""
    if shutil.which(tool) is None:
        return False
    try:
        return subprocess.run([tool, "info"], capture_output=True, timeout=INFO_TIMEOUT_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _run(command: list[str]) -> None:
    code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode
    if code:
        raise UserError(f"{command[0]} failed with code {code}", remedy=f"Try it: {shlex.join(command)}")


def _tag(file: Path, platform: str) -> str:
    digest = hashlib.sha256(f"{platform}\n".encode() + file.read_bytes())
    folder = file.absolute().parent
    ignored = Ignore.of(folder)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not ignored(name):
            digest.update(f"{name}\0{path.stat().st_mode & 0o100}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:TAG_DIGITS]
