"""The etcd add-on: its objects, and images that are refused."""

import pytest

from stoker.backends.kubernetes.etcd import objects, permanent_error
from stoker.image.base import Base
from stoker.image.reference import parse
from stoker.image.requirements import check_etcd
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.run import ScriptSpec

ENDED = {"terminated": {"reason": "Error", "exitCode": 1}}
NO_ETCD = 'exec: "etcd": executable file not found'
ON = ["script=train.py", "on.kind=kubernetes", "on.rendezvous=etcd"]


def test_it_is_a_server_of_the_named_image_with_the_api_that_torch_uses() -> None:
    _, client, server, deployment = objects("registry.example/etcd:v3.5.33", "training")
    assert [manifest["metadata"]["namespace"] for manifest in (client, server, deployment)] == ["training"] * 3
    assert [manifest["metadata"]["name"] for manifest in (client, server)] == ["etcd-client", "etcd-server"]
    pod = deployment["spec"]["template"]
    assert client["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    [container] = pod["spec"]["containers"]
    assert container["image"] == "registry.example/etcd:v3.5.33"
    assert "--enable-v2" in container["command"]
    assert client["spec"]["ports"] == [{"name": "client", "port": 2379}]


@pytest.mark.parametrize("image", ["registry.example/etcd", "registry.example/etcd:latest"])
def test_an_image_that_may_change_is_refused(image: str) -> None:
    with pytest.raises(UserError, match=r"may change\. Name its version"):
        objects(image, "training")


@pytest.mark.parametrize("tag", ["v3.6.0", "3.6", "v3.10.1-arm64", "v4.0.0"])
def test_a_version_without_the_api_that_torch_uses_is_refused(tag: str) -> None:
    with pytest.raises(UserError, match=r"has no v2 API.*Use that version, such as registry\.example/etcd:v3\.5\.21"):
        objects(f"registry.example/etcd:{tag}", "training")
    for good in ("v3.5.33", "3.4.9", "ours"):
        objects(f"registry.example/etcd:{good}", "training")


def test_only_pods_of_its_namespace_reach_it_and_it_has_no_rights_on_its_node() -> None:
    policy, _, _, deployment = objects("registry.example/etcd:v3.5.33", "training")
    pod = deployment["spec"]["template"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    [ingress] = policy["spec"]["ingress"]
    assert ingress == {"from": [{"podSelector": {}}], "ports": [{"protocol": "TCP", "port": 2379}]}
    of_pod, of_container = pod["spec"]["securityContext"], pod["spec"]["containers"][0]["securityContext"]
    assert of_pod["runAsNonRoot"]
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert of_container["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}, "etcd:v9 cannot be pulled"),
        ({"state": {"waiting": {"reason": "CreateContainerConfigError", "message": "no"}}}, "etcd does not start"),
        ({"state": {"waiting": {"reason": "RunContainerError", "message": NO_ETCD}}}, NO_ETCD),
        ({"state": {"terminated": {"reason": "StartError", "exitCode": 128, "message": NO_ETCD}}}, NO_ETCD),
        ({"state": ENDED}, "etcd ends with code 1.*kubectl -n a logs deployment/etcd"),
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ENDED}, "etcd ends with code 1"),
    ],
)
def test_a_server_that_cannot_start_is_not_waited_for(state: dict, problem: str) -> None:
    pod = {
        "metadata": {"name": "etcd-1"},
        "spec": {"containers": [{"image": "etcd:v9"}]},
        "status": {"containerStatuses": [state]},
    }
    with pytest.raises(UserError, match=problem):
        raise permanent_error([pod], "etcd:v9", "kubectl -n a")
    leaving = pod | {"metadata": {"name": "etcd-0", "deletionTimestamp": "2026-11-15T12:00:00Z"}}
    assert permanent_error([leaving], "etcd:v9", "kubectl -n a") is None
    for phase in ("Failed", "Succeeded"):
        evicted = pod | {"status": {"phase": phase, "containerStatuses": [state]}}
        assert permanent_error([evicted], "etcd:v9", "kubectl -n a") is None
    assert permanent_error([pod], "etcd:v10", "kubectl -n a") is None


def test_a_server_that_is_starting_is_waited_for() -> None:
    states = [{"state": {"waiting": {"reason": "ContainerCreating"}}}, {"state": {"running": {}}, "lastState": ENDED}]
    for state in states:
        pod = {"metadata": {"name": "a"}, "spec": {"containers": [{"image": "x"}]}}
        assert permanent_error([pod | {"status": {"containerStatuses": [state]}}], "x", "kubectl -n a") is None


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["data=x", "until.steps=1", "on.kind=kubernetes", "on.rendezvous=etcd"], "on.rendezvous is for scripts"),
        (["script=train.py", "on.rendezvous=etcd"], "rendezvous is for Kubernetes"),
        (["script=train.py", "on.kind=kubernetes", "on.etcd=etcd-host:2379"], "set on.rendezvous to etcd"),
        ([*ON, "on.etcd=etcd-host"], "on.etcd cannot be"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides: list[str], problem: str) -> None:
    with pytest.raises(UserError, match=f"(?i){problem}"):
        load(None, overrides)


def test_an_image_without_torchs_client_of_etcd_is_refused_when_it_is_built() -> None:
    spec = load(None, ON).spec
    base = Base(python="3.12", libc="glibc 2.36", packages={"python-etcd": "0.4.5"})
    none = Base(python="3.12", libc="glibc 2.36", packages={})
    check_etcd(spec, base, parse("x.example/y"))
    check_etcd(ScriptSpec(script="train.py"), none, parse("x.example/y"))
    with pytest.raises(UserError, match=r"x\.example/y:latest has no python-etcd.*stoker\[etcd\]"):
        check_etcd(spec, none, parse("x.example/y"))
