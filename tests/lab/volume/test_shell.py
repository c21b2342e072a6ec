"""Commands where a run in a real cluster is, and what its workers find there."""

import json

from tests.lab.volume.run_there import There


def test_a_shell_runs_a_command_in_the_runs_folder_and_leaves_nothing(there: There) -> None:
    there.stoker("cp", str(there.run.path / "spec.yaml"), f"{there.name}:spec.yaml")
    done = there.stoker("shell", there.name, "--", "sh", "-c", "pwd; cat; echo bad >&2; exit 7", input=b"typed", code=7)
    assert done.stdout.decode() == f"/stoker/runs/{there.name}\ntyped"
    assert done.stderr.decode() == "bad\n"
    assert not [name for name in there.pods(f"stoker.dev/reader={there.name}") if "shell" in name]


def test_env_tells_what_a_worker_in_a_pod_finds_and_no_secret(there: There, live: str) -> None:
    spec = there.run.any_spec()
    there.run.write_spec(spec.model_copy(update={"on": spec.on.model_copy(update={"workers": 2})}))
    done = there.stoker("env", there.name, "--rank", "1", "--json")
    found = json.loads(done.stdout)
    assert found["pod"] == live
    assert found["environment"]["PLAIN"] == "shown"
    assert found["environment"]["HF_TOKEN"] == "***"
    assert b"hf_verysecret" not in done.stdout
    assert found["versions"]["torch"]
    assert any(mount["path"] == "/stoker" for mount in found["mounts"])
    assert "rank 5 now" in there.stoker("env", there.name, "--rank", "5", code=2).stderr.decode()
