"""Reads kubeconfig files: those that KUBECONFIG names, or ~/.kube/config, merged as kubectl merges them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stoker.kube.errors import ClusterError
from stoker.spec.bounded import BoundedLoader
from stoker.spec.files import read_text

DEFAULT = "~/.kube/config"
MAX_CONFIG_BYTES = 4 << 20  # one cluster with its certificates takes some 5 KiB

Entry = dict[str, Any]
"""A cluster or user of a kubeconfig, as it is written there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextEntry:
    """The cluster and the user of one context. Relative paths in an entry start at the folder of its file."""

    cluster: Entry
    cluster_folder: Path
    user: Entry
    user_folder: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Kubeconfig:
    """All kubeconfig files as one. Where two files define the same name, the first file wins."""

    documents: tuple[tuple[Path, Entry], ...]
    """(file, content)"""
    current: str | None
    namespaces: dict[str, str | None]
    """Context -> its default namespace."""

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for path, _ in self.documents)

    def entry(self, context: str) -> ContextEntry:
        """Raises ValueError when the context's entries are missing or malformed."""
        _, names = self._named("contexts", "context", context)
        cluster_folder, cluster = self._named("clusters", "cluster", names.get("cluster"))
        user_folder, user = self._named("users", "user", names["user"]) if names.get("user") else (Path(), {})
        return ContextEntry(cluster=cluster, cluster_folder=cluster_folder, user=user, user_folder=user_folder)

    def _named(self, section: str, kind: str, name: object) -> tuple[Path, Entry]:
        for path, document in self.documents:
            entries = document.get(section) or []
            for entry in entries if isinstance(entries, list) else []:
                if isinstance(entry, dict) and entry.get("name") == name:
                    content = entry.get(kind) or {}
                    if not isinstance(content, dict):
                        raise ValueError(f"its {kind} {name} is not a mapping")
                    return path.parent, content
        raise ValueError(f"it has no {kind} {name}")


def read_kubeconfig() -> Kubeconfig:
    """Files that do not exist are skipped. Raises ClusterError."""
    paths = [Path(os.path.expanduser(name)) for name in location().split(os.pathsep) if name]
    return merged([path for path in paths if path.is_file()])


def merged(files: Sequence[Path]) -> Kubeconfig:
    documents = tuple((path, _read(path)) for path in files)
    current: str | None = None
    namespaces: dict[str, str | None] = {}
    for _, document in documents:
        current = current or document.get("current-context") or None
        for context in document.get("contexts") or []:
            namespaces.setdefault(context["name"], (context.get("context") or {}).get("namespace"))
    return Kubeconfig(documents=documents, current=current, namespaces=namespaces)


def location() -> str:
    """Where kubeconfig files are looked for."""
    return os.environ.get("KUBECONFIG") or DEFAULT


def _read(path: Path) -> Entry:
    try:
        values = yaml.load(read_text(path, max_bytes=MAX_CONFIG_BYTES), BoundedLoader) or {}
        _check(values)
    except OSError as e:
        raise ClusterError(f"cannot read the kubeconfig {path}: {e.strerror}", remedy="Check its permissions") from e
    except (yaml.YAMLError, ValueError) as e:
        raise ClusterError(f"{path} is no kubeconfig: {str(e).splitlines()[0]}", remedy="Restore it") from e
    content: Entry = values
    return content


def _check(values: Any) -> None:
    """Checks what every command reads; clusters and users are checked when they are used. Raises ValueError."""
    if not isinstance(values, dict):
        raise ValueError("it has no contexts")
    if not isinstance(values.get("current-context") or "", str):
        raise ValueError(f"its current-context is {values['current-context']}, which is no name")
    contexts = values.get("contexts") or []
    if not isinstance(contexts, list):
        raise ValueError("its contexts are no list")
    for context in contexts:
        if not isinstance(context, dict) or not isinstance(context.get("name"), str):
            raise ValueError("one of its contexts has no name")
        content = context.get("context") or {}
        if not isinstance(content, dict) or not isinstance(content.get("namespace") or "", str):
            raise ValueError(f"its context {context['name']} is not {{cluster: …, user: …, namespace: …}}")
