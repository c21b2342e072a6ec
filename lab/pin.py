"""Writes lab/go/*/go.mod and go.sum from versions.toml: by hand, after a change there. The result is committed."""

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
    """Some ask for v0.0.0 of the modules that lie in their own tree: Kubernetes' are published as v0.minor.patch,
    others stand in versions.toml."""
    found = json.loads(go("mod", "download", "-json", f"{module}@{modules[module]}", folder=folder))
    staged = re.findall(r"^\s*(\S+) v0\.0\.0$", Path(found["GoMod"]).read_text(), re.MULTILINE)
    kubernetes = re.sub(r"^v\d+", "v0", modules.get("k8s.io/kubernetes", ""))
    return [f"replace {one} => {one} {modules.get(one, kubernetes)}" for one in staged]
