"""What is left to a container tool of the machine: building a Dockerfile, running an image."""

import hashlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from stoker.launch.image.ignore import Ignore
from stoker.launch.image.pull import normal_platform
from stoker.launch.image.reference import Reference, parse_repository
from stoker.launch.image.registry import Registry
from stoker.spec.errors import UserError

TAG_DIGITS = 16
ANSWER_S = 20


def runner() -> str | None:
    """A tool that can run a container now."""
    return next((tool for tool in ("podman", "docker") if _answers(tool)), None)


def run_command(
    tool: str, image: Reference, platform: str, command: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    first, *rest = command
    said = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
    plain = ["--tls-verify=false"] if tool == "podman" and image.plain else []  # docker's daemon has a list of its own
    return [tool, "run", "--rm", *plain, "--platform", platform, *said, "--entrypoint", first, str(image), *rest]


def build_file(file: Path, *, to: str, platform: str) -> Reference:
    """Build a Dockerfile, in its own folder; the tag is made from what goes into it."""
    if not file.is_file():
        raise UserError(f"there is no file {file}", remedy="Name the Dockerfile: --file PATH")
    platform = normal_platform(platform)
    image = parse_repository(to).at(tag=_tag(file, platform))
    tool = _builder()
    words = ["bud"] if tool == "buildah" else ["build"]
    _do([tool, *words, "--platform", platform, "--file", str(file), "--tag", str(image), str(file.absolute().parent)])
    return image


def push_built(image: Reference) -> Reference:
    """What `build_file` made; gives its digest."""
    tool = _builder()
    plain = ["--tls-verify=false"] if tool == "buildah" and image.plain else []
    _do([tool, "push", *plain, str(image), *([f"docker://{image}"] if tool == "buildah" else [])])
    with closing(Registry(image)) as registry:
        return image.at(tag=image.tag, digest=registry.digest(image.repository, image.version))


def _builder() -> str:
    if _answers("docker"):
        return "docker"
    if shutil.which("buildah"):
        return "buildah"
    raise UserError(
        "a Dockerfile needs docker or buildah, and neither is here",
        remedy="Install one of them; without --file no tool is needed: the code is laid over a base image",
    )


def _answers(tool: str) -> bool:
    """The program is there, and its daemon where it has one."""
    if shutil.which(tool) is None:
        return False
    try:
        return subprocess.run([tool, "info"], capture_output=True, timeout=ANSWER_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _do(command: list[str]) -> None:
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
