import json
from pathlib import Path

from stoker.spec.load import load

MANIFESTS = Path(__file__).parents[1] / "convert"


def test_a_manifest_becomes_a_run_file(stoker) -> None:
    done = stoker("import-config", "elasticjob", str(MANIFESTS / "elasticjob.yaml"), "-o", "run.yaml")
    assert done.stdout == ""
    assert "fields used" in done.stderr
    assert load(stoker.folder / "run.yaml", []).spec.name == "gpt2"
    second = stoker("import-config", "elasticjob", str(MANIFESTS / "elasticjob.yaml"), "-o", "run.yaml", code=2)
    assert second.stderr.startswith("stoker: run.yaml exists already")


def test_a_run_file_is_written_and_fields_are_printed_as_json(stoker) -> None:
    done = stoker("import-config", "elasticjob", str(MANIFESTS / "elasticjob.yaml"), "-o", "run.yaml", "--json")
    assert json.loads(done.stdout)["run"]["name"] == load(stoker.folder / "run.yaml", []).spec.name == "gpt2"


def test_a_file_that_cannot_be_written_is_one_line(stoker) -> None:
    done = stoker("import-config", "elasticjob", str(MANIFESTS / "elasticjob.yaml"), "-o", "none/run.yaml", code=2)
    assert done.stderr.startswith("stoker: none/run.yaml cannot be written: No such file")


def test_a_template_takes_its_values_from_the_command_line(stoker) -> None:
    file = str(MANIFESTS / "fsdp.yaml-template")
    values = ["NUM_NODES=4", "GPU_PER_NODE=8", "EFA_PER_NODE=32", "INSTANCE_TYPE=p5.48xlarge", "IMAGE_URI=team/fsdp:1"]
    options = [option for value in values for option in ("--set", value)]
    done = stoker("import-config", "pytorchjob", file, *options, "--json")
    converted = json.loads(done.stdout)
    assert converted["run"]["on"]["nodes"] == 4
    assert {"field": "spec.elasticPolicy.maxRestarts", "became": "on.max_restarts"} in converted["fields"]
    refused = stoker("import-config", "pytorchjob", file, code=2)
    assert refused.stderr.count("\n") == 1
    assert "--set NUM_NODES=VALUE" in refused.stderr


def test_a_missing_file_is_one_line(stoker) -> None:
    assert stoker("import-config", "pytorchjob", "none.yaml", code=2).stderr.startswith(
        "stoker: none.yaml cannot be read"
    )
