"""The etcd server that a run may ask for: what it is made of, and what is refused."""

import pytest

from stoker.launch.etcd import objects
from stoker.launch.image.base import Base
from stoker.launch.image.needs import check_etcd
from stoker.launch.image.reference import parse
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.run import ScriptSpec

ON = ["script=train.py", "on.kind=kubernetes", "on.rendezvous=etcd"]


def test_it_is_a_server_of_the_image_that_was_named_with_the_api_that_torch_speaks() -> None:
    client, server, deployment = objects("registry.example/etcd:v3.5.33", "training")
    assert [one["metadata"]["namespace"] for one in (client, server, deployment)] == ["training"] * 3
    assert [one["metadata"]["name"] for one in (client, server)] == ["etcd-client", "etcd-server"]
    pod = deployment["spec"]["template"]
    assert client["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    [container] = pod["spec"]["containers"]
    assert container["image"] == "registry.example/etcd:v3.5.33"
    assert "--enable-v2" in container["command"]
    assert client["spec"]["ports"] == [{"name": "client", "port": 2379}]


@pytest.mark.parametrize("image", ["registry.example/etcd", "registry.example/etcd:latest"])
def test_an_image_that_may_change_is_refused(image: str) -> None:
    with pytest.raises(UserError, match=r"may be another one tomorrow\. Name its version"):
        objects(image, "training")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data=x", "until.steps=1", "on.kind=kubernetes", "on.rendezvous=etcd"], "on.rendezvous is for scripts"),
        (["script=train.py", "on.rendezvous=etcd"], "rendezvous is for Kubernetes"),
        (["script=train.py", "on.kind=kubernetes", "on.etcd=there:2379"], "set on.rendezvous to etcd"),
        ([*ON, "on.etcd=there"], "on.etcd cannot be"),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=f"(?i){said}"):
        load(None, words)


def test_an_image_without_torchs_client_of_etcd_is_refused_when_it_is_built() -> None:
    spec = load(None, ON).spec
    there = Base(python="3.12", libc="glibc 2.36", packages={"python-etcd": "0.4.5"})
    none = Base(python="3.12", libc="glibc 2.36", packages={})
    check_etcd(spec, there, parse("x.example/y"))
    check_etcd(ScriptSpec(script="train.py"), none, parse("x.example/y"))
    with pytest.raises(UserError, match=r"x\.example/y:latest has no python-etcd.*stoker\[etcd\]"):
        check_etcd(spec, none, parse("x.example/y"))
