"""Writes lab/go/*/go.mod and go.sum from versions.toml: by hand, after a change there. The result is committed."""

import json
import re
from pathlib import Path

from lab import versions
from lab.golang import SOURCES, go

GO = "1.25.0"
TOOLS = {
    "cluster": ["k8s.io/kubernetes/cmd/kubectl", "go.etcd.io/etcd/server/v3"],
    "etcd": ["go.etcd.io/etcd/server/v3"],
    "kwok": ["sigs.k8s.io/kwok/cmd/kwok"],
    "operator": ["github.com/kubeflow/training-operator/cmd/training-operator.v1"],
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
    lines += [line for module, version in modules.items() for line in _replacements(module, version, folder)]
    (folder / "go.mod").write_text("\n".join(lines) + "\n")
    go("mod", "tidy", folder=folder)


def _replacements(module: str, version: str, folder: Path) -> list[str]:
    """Kubernetes asks for v0.0.0 of the modules that lie in its own tree: they are published as v0.minor.patch."""
    found = json.loads(go("mod", "download", "-json", f"{module}@{version}", folder=folder))
    staged = re.findall(r"^\s*(\S+) v0\.0\.0$", Path(found["GoMod"]).read_text(), re.MULTILINE)
    published = re.sub(r"^v\d+", "v0", version)
    return [f"replace {one} => {one} {published}" for one in staged]
