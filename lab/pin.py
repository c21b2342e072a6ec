"""Writes lab/go/*/go.mod and go.sum from versions.toml. Run it after a change there, and commit the result."""

import json
import re
from pathlib import Path

from lab import versions
from lab.golang import GCS, KWOK, OPERATOR, SOURCES, TRAINER, VOLCANO, go

GO = "1.25.0"
TOOLS = {
    "cluster": ["k8s.io/kubernetes/cmd/kubectl", *VOLCANO, OPERATOR],
    "etcd": ["go.etcd.io/etcd/server/v3"],
    "trainer": [*TRAINER, KWOK],
    "gcs": [GCS],
}


def pin() -> None:
    for name, modules in versions.read().modules.items():
        _write(name, modules)


def _write(name: str, modules: dict[str, str]) -> None:
    folder = SOURCES / name
    folder.mkdir(exist_ok=True)
    lines = [f"module lab/{name}", "", f"go {GO}", ""]
    lines += [f"tool {tool}" for tool in TOOLS[name]] + [""]
    lines += [f"require {module} {version}" for module, version in modules.items()] + [""]
    (folder / "go.mod").write_text("\n".join(lines))
    lines += sorted({line for module in modules for line in _replacements(module, modules, folder)})
    (folder / "go.mod").write_text("\n".join(lines) + "\n")
    go("mod", "tidy", folder=folder)


def _replacements(module: str, modules: dict[str, str], folder: Path) -> list[str]:
    """Some modules require v0.0.0 of modules in their own repository. Kubernetes publishes these as v0.minor.patch; the
    versions of others are in versions.toml."""
    download = json.loads(go("mod", "download", "-json", f"{module}@{modules[module]}", folder=folder))
    staged = re.findall(r"^\s*(\S+) v0\.0\.0$", Path(download["GoMod"]).read_text(), re.MULTILINE)
    kubernetes = re.sub(r"^v\d+", "v0", modules.get("k8s.io/kubernetes", ""))
    return [f"replace {path} => {path} {modules.get(path, kubernetes)}" for path in staged]
