"""What is read from a base image, and how little of it."""

import gzip
import hashlib
import json
import os

import pytest
import requests

from stoker.image.base import Base, probe
from stoker.image.pull import normal_platform, pull
from stoker.image.reference import parse
from stoker.image.registry import OCI_INDEX, Registry
from stoker.image.requirements import check_torch, needs
from stoker.spec.errors import UserError
from stoker.spec.run import ScriptSpec
from tests.image.small_images import repository_of
from tests.waiting import until

SPEC = ScriptSpec(script="x.py")


def look(name: str) -> Base:
    reference = parse(name)
    registry = Registry(reference)
    contents = probe(registry, pull(registry, reference, "linux/amd64"), needs(SPEC), progress=lambda *_: None)
    registry.close()
    return contents


def test_python_libc_and_packages_are_found_in_the_layers(base: str) -> None:
    contents = look(base)
    assert (contents.python, contents.libc, contents.torch) == ("3.11", "glibc 2.36", "2.11.0+cpu")
    assert contents.packages["pyyaml"] == "99.0"


def test_a_newer_layer_hides_files_of_the_layers_below(image, parts) -> None:
    change = {
        f"{parts.site}/.wh.torch-2.11.0+cpu.dist-info": "",
        f"{parts.site}/torch-2.12.0.dist-info/METADATA": "",
        f"{parts.site}/rich/.wh..wh..opq": "",
    }
    assert look(image(parts.os, parts.python, parts.packages(), change)).torch == "2.12.0"
    gone = {f"{parts.site}/.wh.torch-2.11.0+cpu.dist-info": ""}
    assert look(image(parts.os, parts.python, parts.packages(), gone)).torch is None
    all_gone = {f"{parts.site}/.wh..wh..opq": ""}
    assert look(image(parts.os, parts.python, parts.packages(), all_gone)).packages == {}


def test_the_python_that_the_path_finds_counts(image, parts) -> None:
    conda = {
        "opt/conda/bin/python3": ("link", "python3.12"),
        "opt/conda/bin/python3.12": b"",
        "opt/conda/lib/python3.12/site-packages/torch-2.11.1.dist-info/METADATA": "",
    }
    config = {"Env": ["PATH=/opt/conda/bin:/usr/bin"]}
    contents = look(image(parts.os, parts.python, parts.packages(), conda, config=config))
    assert (contents.python, contents.torch, "rich" in contents.packages) == ("3.12", "2.11.1", False)


def test_a_virtual_environment_has_only_its_own_packages(image, parts) -> None:
    venv = {
        "venv/pyvenv.cfg": "",
        "venv/bin/python3": ("link", "/usr/bin/python3"),
        "venv/lib/python3.11/site-packages/torch-2.13.0.dist-info/METADATA": "",
    }
    contents = look(image(parts.os, parts.python, parts.packages(), venv, config={"Env": ["PATH=/venv/bin:/usr/bin"]}))
    assert (contents.python, contents.packages) == ("3.11", {"torch": "2.13.0"})


def test_a_python_that_is_a_plain_file_is_known_by_its_library(image, parts) -> None:
    files = {"usr/local/bin/python3": b"\x7fELF", "usr/local/lib/python3.13/os.py": ""}
    assert look(image(parts.os, files)).python == "3.13"


def test_musl_and_glibc_are_distinguished(image, parts) -> None:
    alpine = {"lib/ld-musl-x86_64.so.1": b"", "lib/apk/db/installed": "P:zlib\nV:1.3\n\nP:musl\nV:1.2.5-r9\n"}
    assert look(image(alpine, parts.python)).libc == "musl 1.2"


def test_an_image_that_describes_itself_is_read_no_further_than_that(image, parts, registry) -> None:
    description = {"python": "3.12", "libc": "glibc 2.41", "packages": {"torch": "2.11.0", "PyYAML": "6.0"}}
    name = image(parts.os, parts.python, {"big": b"x" * 10_000}, {"opt/stoker/base.json": json.dumps(description)})
    contents = look(name)
    assert (contents.python, contents.libc, contents.packages) == (
        "3.12",
        "glibc 2.41",
        {"torch": "2.11.0", "pyyaml": "6.0"},
    )
    one_layer = {"opt/stoker/base.json": json.dumps(description), "usr/bin/python3": b"", "big": os.urandom(30 << 20)}
    reference = parse(image(one_layer))
    read = []
    client = Registry(reference)
    probe(client, pull(client, reference, "linux/amd64"), [], progress=lambda _step, done, _total: read.append(done))
    assert read[-1] < 4 << 20
    repository = parse(name).repository
    read = [path for method, path, _ in registry.requests() if method == "GET" and f"{repository}/blobs" in path]
    assert len(read) == 2  # its config and its last layer


def test_the_contents_of_a_layer_are_cached(base: str, registry) -> None:
    look(base)
    before = len(registry.requests())
    assert look(base).torch == "2.11.0+cpu"
    again = [path for method, path, _ in registry.requests()[before:] if method == "GET" and "/blobs/" in path]
    assert len(again) == 1  # the config


def test_a_layer_with_another_digest_is_not_cached(image, parts, lying) -> None:
    name = image(parts.os, parts.python, parts.packages())
    other = image(parts.packages(torch="2.99.0"))
    with pytest.raises(UserError, match=r"returned other content than bases/\w+@sha256:"):
        look(lying(name, other))
    assert look(name).torch == "2.11.0+cpu"


def test_the_description_of_a_large_layer_is_not_cached_unread(image, registry) -> None:
    description = {"python": "3.12", "libc": "glibc 2.41", "packages": {"torch": "2.11.0"}}
    name = image({"opt/stoker/base.json": json.dumps(description), "usr/bin/python3": b"", "big": os.urandom(2 << 20)})

    def blobs_read() -> int:
        blobs = f"/v2/{repository_of(name)}/blobs/"
        return sum(method == "GET" and path.startswith(blobs) for method, path, _ in registry.requests())

    look(name)
    until(lambda: blobs_read() == 2)  # the registry logs a request when it ends
    assert look(name).torch == "2.11.0"
    until(lambda: blobs_read() == 4)  # the config and the layer again


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"python": "three"}', '{"python": "3.12", "packages": [1]}'])
def test_an_empty_description_is_refused(image, parts, text: str) -> None:
    with pytest.raises(UserError, match=r"layer .* its /opt/stoker/base\.json is not a valid description"):
        look(image(parts.os, parts.python, {"opt/stoker/base.json": text}))


def test_a_link_in_the_place_of_a_file_that_describes_the_image_is_ignored(image, parts) -> None:
    links = {"opt/stoker/base.json": ("link", "x"), "lib/apk/db/installed": ("link", "y")}
    assert look(image(parts.os, parts.python, parts.packages(), links)).libc == "glibc 2.36"


def test_a_missing_libc_is_found_in_the_layers(image, parts) -> None:
    description = {"python": "3.12", "libc": " ", "packages": {"torch": "2.11.0", "odd": None, "older": "1-of-2"}}
    alpine = {"lib/apk/db/installed": "P:musl\nV:1.2.5-r9\n"}
    contents = look(image(alpine, parts.python, {"opt/stoker/base.json": json.dumps(description)}))
    assert (contents.libc, contents.packages) == ("musl 1.2", {"torch": "2.11.0"})
    with pytest.raises(UserError, match="neither glibc nor musl"):
        look(image(parts.python, {"opt/stoker/base.json": json.dumps(description)}))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (["os"], r"has no Python: python3 is not in its PATH\. Choose a base"),
        (["os", {"usr/bin/python3": ("link", "python3.9"), "usr/bin/python3.9": b""}], r"Python 3\.9, .* needs 3\.11"),
        (["python"], r"neither glibc nor musl"),
    ],
)
def test_an_unsuitable_base_is_refused_by_name(image, parts, layers: list, message: str) -> None:
    with pytest.raises(UserError, match=message):
        look(image(*(getattr(parts, layer) if isinstance(layer, str) else layer for layer in layers)))


def test_a_base_without_torch_is_refused_with_a_remedy() -> None:
    with pytest.raises(UserError, match=r"has no torch for its Python 3\.12.*stoker\[train\]"):
        check_torch(SPEC, Base(python="3.12", libc="glibc 2.36", packages={}), parse("x.example/y"))


def test_an_image_that_does_not_exist_or_is_for_another_platform_is_refused(image, parts, registry) -> None:
    with pytest.raises(UserError, match=r"none:1 does not exist\. .*docker login"):
        look(f"{registry.name}/none:1")
    with pytest.raises(UserError, match=r"is for linux/arm64, and linux/amd64 is requested"):
        look(image(parts.os, machine="arm64"))


def test_the_requested_platform_of_a_multi_platform_image_is_used(image, parts, registry) -> None:
    references = {machine: parse(image(parts.os, machine=machine)) for machine in ("amd64", "arm64")}
    url = f"http://{registry.name}/v2"
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    manifests = []
    for machine, reference in references.items():
        content = requests.get(f"{url}/{reference.repository}/manifests/1", headers=accept, timeout=60).content
        document = json.loads(content)
        for blob in (document["config"], *document["layers"]):
            mount = {"mount": blob["digest"], "from": reference.repository}
            requests.post(f"{url}/many/blobs/uploads/", params=mount, timeout=60).raise_for_status()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        kind = {"Content-Type": accept["Accept"]}
        requests.put(f"{url}/many/manifests/{digest}", data=content, headers=kind, timeout=60).raise_for_status()
        description = {"mediaType": accept["Accept"], "digest": digest, "size": len(content)}
        manifests.append(description | {"platform": {"os": "linux", "architecture": machine}})
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests}
    kind = {"Content-Type": OCI_INDEX}
    requests.put(f"{url}/many/manifests/1", data=json.dumps(index), headers=kind, timeout=60).raise_for_status()
    many = parse(f"{registry.name}/many:1")
    assert pull(Registry(many), many, "linux/arm64").config["architecture"] == "arm64"
    assert pull(Registry(many), many, "linux/amd64").config["architecture"] == "amd64"
    with pytest.raises(UserError, match=r"is for linux/amd64, linux/arm64, and linux/s390x is requested"):
        pull(Registry(many), many, "linux/s390x")


LAYER = {"mediaType": "x", "size": 1, "digest": f"sha256:{'0' * 64}"}


@pytest.mark.parametrize(
    "manifest",
    [
        "{",
        "[]",
        "{}",
        json.dumps({"config": LAYER, "layers": [LAYER | {"digest": "sha256:../../../x"}]}),
        json.dumps({"config": LAYER, "layers": [LAYER | {"size": "many"}]}),
        json.dumps({"config": LAYER | {"digest": 7}, "layers": []}),
    ],
)
def test_a_damaged_manifest_is_refused(answering, manifest: str) -> None:
    headers = {"Content-Type": "application/vnd.oci.image.manifest.v1+json"}
    reference = parse(f"{answering(lambda *_: (200, headers, manifest.encode()))}/a:1")
    with pytest.raises(UserError, match=r"a:1 has a damaged manifest or config: .*Push it again"):
        pull(Registry(reference), reference, "linux/amd64")


@pytest.mark.parametrize("config", [{}, [], {"rootfs": {"diff_ids": ["sha256:1"]}}])
def test_a_damaged_config_is_refused(answering, config: object) -> None:
    content = json.dumps(config).encode()
    manifest = {"config": LAYER | {"digest": f"sha256:{hashlib.sha256(content).hexdigest()}"}, "layers": []}
    headers = {"Content-Type": "application/vnd.oci.image.manifest.v1+json"}
    bodies = {"manifests": json.dumps(manifest).encode(), "blobs": content}
    host = answering(lambda _, path, __: (200, headers, bodies[path.split("/")[3]]))
    reference = parse(f"{host}/a:1")
    with pytest.raises(UserError, match="has a damaged manifest or config"):
        pull(Registry(reference), reference, "linux/amd64")


@pytest.mark.parametrize("name", ["amd64", "x86_64", "linux/amd64", "linux/x86_64"])
def test_a_platform_has_one_name(name: str) -> None:
    assert normal_platform(name) == "linux/amd64"


def test_a_layer_that_is_not_a_tar_file_is_refused(registry, pushing) -> None:
    name = pushing(registry, [gzip.compress(b"junk" * 1000)], repository="bases/junk")
    with pytest.raises(UserError, match="is not a readable layer"):
        look(name)
