"""Manifests of users become run files, and no field is dropped silently."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.convert.command import read_command
from stoker.convert.run_file import read_manifest, run_file
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.run import ScriptSpec

HERE = Path(__file__).parent
S3 = {
    "NUM_NODES": "2",
    "GPU_PER_NODE": "8",
    "EFA_PER_NODE": "32",
    "INSTANCE_TYPE": "p5.48xlarge",
    "IMAGE_URI": "team/fsdp:1",
}
FILES = [
    ("pytorchjob", "fsdp.yaml-template", S3),
    ("pytorchjob", "pytorch-job-cpu.yaml", {}),
    ("elasticjob", "elasticjob.yaml", {}),
]


def read(kind: str, file: str, variables: dict[str, str] | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    values, outcomes = read_manifest((HERE / file).read_text(), file, kind, variables or {})
    assert len(dict(outcomes)) == len(outcomes)
    return values, {field: str(outcome) for field, outcome in outcomes}


def paths(value: Any, path: str = "") -> Iterator[str]:
    """Every leaf of a document, walked independently of the converter."""
    if isinstance(value, dict) and value:
        for key in value:
            yield from paths(value[key], f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            yield from paths(item, f"{path}[{number}]")
    else:
        yield path


@pytest.mark.parametrize(("kind", "file", "variables"), FILES, ids=[file for _, file, _ in FILES])
def test_every_field_is_used_or_listed_as_not_used(kind: str, file: str, variables: dict[str, str]) -> None:
    text = (HERE / file).read_text()
    documents = list(yaml.safe_load_all(text))
    job = next(document for document in documents if document["kind"] in ("PyTorchJob", "ElasticJob"))
    _, outcomes = read(kind, file, variables)
    assert [field for field in outcomes if " " not in field] == list(paths(job))
    assert all(outcomes.values())


@pytest.mark.parametrize(("kind", "file", "variables"), FILES, ids=[file for _, file, _ in FILES])
def test_the_result_is_a_run_file_with_the_same_values(
    kind: str, file: str, variables: dict[str, str], tmp_path: Path
) -> None:
    values, outcomes = read_manifest((HERE / file).read_text(), file, kind, variables)
    (tmp_path / "run.yaml").write_text(run_file(values, outcomes, source=file))
    spec = load(tmp_path / "run.yaml", []).spec
    assert isinstance(spec, ScriptSpec)
    assert spec.args == values["args"] if "args" in values else not spec.args
    assert spec.env == values["env"]
    assert spec.on.kind == "kubernetes"
    assert spec.on.pod == values["on"]["pod"]
    for field, outcome in outcomes:
        if not outcome.is_used:
            assert f"#   {field}: " in (tmp_path / "run.yaml").read_text()


def test_a_job_of_llama_on_efa(capsys: pytest.CaptureFixture[str]) -> None:
    del capsys
    values, outcomes = read("pytorchjob", "fsdp.yaml-template", S3)
    on = values["on"]
    assert values["name"] == "fsdp"
    assert values["script"] == "/fsdp/train.py"
    assert values["args"][:2] == ["--max_context_width=4096", "--dataset=allenai/c4"]
    assert values["args"][-2:] == ["--lr", "1e-4"]
    assert (on["job"], on["nodes"], on["workers"], on["gpus"], on["efa"]) == ("pytorchjob", 2, 8, 8, 32)
    assert (on["instance"], on["image"], on["volume"], on["max_restarts"]) == (
        "p5.48xlarge",
        "team/fsdp:1",
        "fsx-claim",
        100,
    )
    assert values["env"]["NCCL_SOCKET_IFNAME"] == "^lo"
    assert values["secrets"] == {"HF_TOKEN": "env:HF_TOKEN"}
    assert "hf_hunter2" not in str(values) + str(outcomes)
    mounts = {mount["mountPath"] for mount in on["pod"]["spec"]["containers"][0]["volumeMounts"]}
    assert mounts == {"/local", "/checkpoints"}
    assert outcomes["spec.elasticPolicy.maxReplicas"] == "not used: --nnodes=2 in the command overrides it"
    assert outcomes["spec.elasticPolicy.metrics[0].type"].startswith(
        "not used: set on.autoscale instead, such as {cpu: 80}"
    )
    assert outcomes["Service etcd"].startswith("not used")


def test_a_job_of_master_and_worker() -> None:
    values, outcomes = read("pytorchjob", "pytorch-job-cpu.yaml")
    on = values["on"]
    assert (on["nodes"], on["workers"], on["grace"], on["namespace"]) == (2, 2, "600s", "default")
    assert values["script"] == "distributed-training.py"
    assert "args" not in values
    assert on["pod"]["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
    worker = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0]"
    assert outcomes[f"{worker}.args[2]"] == "not used: every pod knows its own index"
    assert (
        outcomes[f"{worker}.image"] == "the same as spec.pytorchReplicaSpecs.Master.template.spec.containers[0].image"
    )


def test_a_difference_between_worker_and_master_is_reported() -> None:
    document = yaml.safe_load((HERE / "pytorch-job-cpu.yaml").read_text())
    other = copy.deepcopy(document)
    other["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["image"] = "team/other:1"
    _, outcomes = read_manifest(yaml.safe_dump(other), "x", "pytorchjob", {})
    outcome = str(dict(outcomes)["spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].image"])
    assert outcome.startswith("not used: all nodes of a run are alike")


def test_an_elastic_job() -> None:
    values, outcomes = read("elasticjob", "elasticjob.yaml")
    on = values["on"]
    assert (on["job"], on["nodes"], on["workers"], on["max_restarts"]) == ("job", "1..2", 4, 5)
    assert (on["cpu"], on["memory"], on["gpus"], on["shm"]) == (2, "16GiB", 4, "8GiB")
    assert (on["spot"], on["selectors"], on["service_account"]) == (True, {"role": "gpu"}, "trainer")
    assert (on["priority"], on["image_secrets"]) == ("high", ["pull"])
    assert on["tolerations"] == ["nvidia.com/gpu:NoSchedule", "team=words"]
    assert values["script"] == "/workspace/src/train_lm.py"
    assert values["secrets"] == {"WANDB_API_KEY": "env:WANDB_API_KEY"}
    spec = on["pod"]["spec"]
    ours, sidecar = spec["containers"]
    assert (spec["hostNetwork"], spec["initContainers"][0]["name"], sidecar["name"]) == (True, "fetch", "sidecar")
    assert ours["name"] == "pytorch"
    assert ours["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert ours["resources"] == {"requests": {"hugepages-2Mi": "512Mi"}}
    assert [variable["name"] for variable in ours["env"]] == ["POD_IP"]
    worker = "spec.replicaSpecs.Worker.template.spec"
    assert outcomes[f"{worker}.containers[0].resources.requests.cpu"].startswith("not used: Stoker uses one number for")
    assert outcomes["spec.maxReplicas"].startswith("not used: the job starts 2 replicas")
    assert outcomes["spec.rdzvEndpoint"] == "not used: the nodes find each other through the run's volume"
    assert outcomes["metadata.uid"] == "not used: the cluster sets it"


def test_a_template_is_refused_with_the_variables_that_have_no_value() -> None:
    with pytest.raises(
        UserError, match=r"is a template: \$NUM_NODES, .*--set NUM_NODES=VALUE --set INSTANCE_TYPE=VALUE"
    ):
        read("pytorchjob", "fsdp.yaml-template")
    with pytest.raises(UserError, match=r"\$GPU_PER_NODE has no value .*Set them: --set GPU_PER_NODE=VALUE$"):
        read("pytorchjob", "fsdp.yaml-template", {k: v for k, v in S3.items() if k != "GPU_PER_NODE"})
    with pytest.raises(UserError, match=r"has no \$NUM_NODE\. "):
        read("pytorchjob", "fsdp.yaml-template", S3 | {"NUM_NODE": "2"})


def convert_changed(change: Callable[[dict[str, Any]], None]) -> tuple[dict[str, Any], dict[str, str]]:
    """Convert the manifest of master and worker after a change of its spec."""
    document = yaml.safe_load((HERE / "pytorch-job-cpu.yaml").read_text())
    change(document["spec"])
    values, outcomes = read_manifest(yaml.safe_dump(document), "job.yaml", "pytorchjob", {})
    return values, {field: str(outcome) for field, outcome in outcomes}


def master(spec: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    return pod


def test_a_volume_may_be_mounted_twice() -> None:
    mounts = [{"name": "team", "mountPath": f"/{name}", "subPath": name} for name in ("data", "models")]

    def change(spec: dict[str, Any]) -> None:
        master(spec)["volumes"] = [{"name": "team", "persistentVolumeClaim": {"claimName": "shared"}}]
        master(spec)["containers"][0]["volumeMounts"] = mounts

    values, _ = convert_changed(change)
    assert values["on"]["pod"]["spec"]["containers"][0]["volumeMounts"] == mounts


def test_variables_are_expanded_as_kubernetes_does() -> None:
    def change(spec: dict[str, Any]) -> None:
        container = master(spec)["containers"][0]
        container["env"] = [
            {"name": "ROOT", "value": "/data"},
            {"name": "BOOKS", "value": "$(ROOT)/books"},
            {"name": "HF_TOKEN", "value": "hunter2"},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "URL", "value": "http://$(IP)/"},
        ]
        arguments = ["--data=$(BOOKS)", "--keep=$$(BOOKS)", "--token=$(HF_TOKEN)", "--ip", "$(IP)"]
        container["command"], container["args"] = ["torchrun", "--nproc_per_node=2", "train.py", *arguments], []

    values, outcomes = convert_changed(change)
    assert values["args"] == ["--data=/data/books", "--keep=$(BOOKS)", "--token=$(HF_TOKEN)", "--ip", "$(IP)"]
    assert values["env"] == {"ROOT": "/data", "BOOKS": "/data/books", "URL": "http://$(IP)/"}
    container = "spec.pytorchReplicaSpecs.Master.template.spec.containers[0]"
    assert outcomes[f"{container}.command[3]"] == "args"
    assert outcomes[f"{container}.command[5]"].startswith("not used: $(HF_TOKEN) is not expanded")
    assert outcomes[f"{container}.command[7]"].endswith("the script can read IP")
    assert outcomes[f"{container}.env[4].value"].startswith("not used: $(IP) is not expanded")


def replicas(number: object) -> Callable[[dict[str, Any]], None]:
    return lambda spec: spec["pytorchReplicaSpecs"]["Master"].update(replicas=number)


def resource(**amounts: object) -> Callable[[dict[str, Any]], None]:
    return lambda spec: master(spec)["containers"][0].update(resources={"requests": amounts})


def command(*arguments: str) -> Callable[[dict[str, Any]], None]:
    return lambda spec: master(spec)["containers"][0].update(command=list(arguments), args=[])


def no_replicas(spec: dict[str, Any]) -> None:
    command("torchrun", "t.py")(spec)
    replicas(0)(spec)
    del spec["pytorchReplicaSpecs"]["Worker"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replicas("²"), "Master.replicas is ², which is not a number"),
        (command("torchrun", "--nnodes=0:2", "t.py"), r"command\[1\].*: on.nodes: '0..2' is not a number"),
        (no_replicas, "Master.replicas: on.nodes: '0' is not a number of nodes"),
        (lambda spec: master(spec).update(terminationGracePeriodSeconds="abc"), "PeriodSeconds: on.grace: "),
        (resource(memory=""), "'' is not an amount of memory"),
        (resource(memory="i"), "'i' is not an amount of memory"),
        (resource(memory="-1Gi"), r"requests.memory: on.memory: "),
        (resource(cpu="Infinity"), "'Infinity' is not an amount of cpu"),
        (resource(memory="Infinity"), "'Infinity' is not an amount of memory"),
        (
            command("sh", "-c", "torchrun t.py --msg it's"),
            r"cannot be parsed \(No closing quotation\)",
        ),
    ],
)
def test_a_value_that_no_run_can_have_is_reported_with_its_field(
    change: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        convert_changed(change)


JOB = "kind: PyTorchJob\napiVersion: kubeflow.org/v1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Pod", "holds no PyTorchJob"),
        ("{", "job.yaml:1: not YAML"),
        ("a: 2026-13-45", "not YAML: '2026-13-45' is no timestamp"),
        ("kind: PyTorchJob\nspec: &a [*a]", "an alias contains itself"),
        ("- a", "holds no PyTorchJob"),
        (
            "kind: PyTorchJob\napiVersion: kubeflow.org/v2",
            r"of kubeflow\.org/v2\. .*takes a PyTorchJob of kubeflow.org/v1$",
        ),
        (f"{JOB}spec: {{}}", "pytorchReplicaSpecs has no Worker"),
        (f"{JOB}spec: {{pytorchReplicaSpecs: {{Worker: {{}}}}}}", "has no container"),
        (f"{JOB}---\n{JOB}", "holds 2 PyTorchJobs"),
    ],
)
def test_another_kind_of_document_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_manifest(text, "job.yaml", "pytorchjob", {})


@pytest.mark.parametrize(
    "command_line",
    [
        "torchrun --nproc_per_node=2 --nnodes 1:4 train.py --a b",
        "python3 -u -m torch.distributed.run --nproc-per-node 2 --nnodes=1:4 train.py --a b",
        "python -m torch.distributed.launch --nproc_per_node=2 --use_env --nnodes=1:4 train.py --a b",
        "python -m torchelastic.distributed.launch --nproc_per_node=2 --nnodes=1:4 train.py --a b",
        "--nproc_per_node=2 --nnodes=1:4 train.py --a b",
        "/opt/conda/bin/torchrun --nproc_per_node=2 --nnodes=1:4 train.py --a b",
    ],
)
def test_the_commands_of_all_launchers_are_parsed(command_line: str) -> None:
    for argv in (command_line.split(), ["bash", "-lc", command_line], ["/bin/sh", "-c", f"exec {command_line}"]):
        parsed = read_command(argv, "here")
        assert (parsed.script, parsed.args) == ("train.py", ["--a", "b"])
        assert (parsed.options["nproc_per_node"], parsed.options["nnodes"]) == ("2", "1:4")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["torchrun", "--nnodes=2"], "names no script"),
        ([], "names no script"),
        (["./start.sh"], r"runs \./start\.sh, which is neither"),
        (["bash", "-c", "cd /x && torchrun a.py"], "shell script of several commands"),
        (["torchrun", "-m", "pkg.train"], r"runs pkg\.train with -m, and Stoker runs a file"),
        (["python", "-m", "pkg.train"], r"runs pkg\.train with -m"),
    ],
)
def test_a_command_that_cannot_be_converted_is_refused_with_a_remedy(argv: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_command(argv, "container x")


def test_a_plain_python_script_is_a_script() -> None:
    parsed = read_command(["python", "train.py", "--x"], "here")
    assert (parsed.script, parsed.args, parsed.options) == ("train.py", ["--x"], {})


def test_the_working_directory_of_a_sidecar_is_not_that_of_the_script() -> None:
    def add_sidecar(spec: dict[str, Any]) -> None:
        master(spec)["containers"].append({"name": "logs", "image": "team/logs", "workingDir": "/var/log"})

    assert convert_changed(add_sidecar)[0]["script"] == "distributed-training.py"


@pytest.mark.parametrize("line_end", ["\n", "\r", "\x85", "\u2028"])
def test_text_of_a_manifest_does_not_end_a_comment_of_the_run_file(tmp_path: Path, line_end: str) -> None:
    document = yaml.safe_load((HERE / "pytorch-job-cpu.yaml").read_text())
    document["spec"][f"odd{line_end}secrets: [HOME]{line_end}"] = 1
    name = f"job{line_end}args: [injected].yaml"
    values, outcomes = read_manifest(yaml.safe_dump(document), name, "pytorchjob", {})
    (tmp_path / "run.yaml").write_text(run_file(values, outcomes, source=name))
    spec = load(tmp_path / "run.yaml", []).spec
    assert isinstance(spec, ScriptSpec)
    assert (spec.secrets, spec.args) == ({}, [])


@pytest.mark.parametrize("value", ["1" * 50, "1e-4", "true", "007", "a: b", "[x", "two\nlines\n", "1\n", ""])
def test_the_value_of_a_variable_is_the_same_text_in_the_run_file(tmp_path: Path, value: str) -> None:
    def set_variable(spec: dict[str, Any]) -> None:
        master(spec)["containers"][0]["env"] = [{"name": "ID", "value": value}]

    values, _ = convert_changed(set_variable)
    (tmp_path / "run.yaml").write_text(run_file(values, [], source="job.yaml"))
    assert load(tmp_path / "run.yaml", []).spec.env == {"ID": value}


def test_another_document_may_have_any_metadata() -> None:
    text = (HERE / "pytorch-job-cpu.yaml").read_text() + "\n---\nkind: Odd\nmetadata: text\n"
    _, outcomes = read_manifest(text, "job.yaml", "pytorchjob", {})
    assert "Odd" in dict(outcomes)
