"""`shell` and `env` for a run in a real cluster."""

import json

from tests.lab.volume.cluster_run import ClusterRun


def test_a_shell_runs_a_command_in_the_runs_folder_and_leaves_nothing(cluster_run: ClusterRun) -> None:
    cluster_run.stoker("cp", str(cluster_run.run.path / "spec.yaml"), f"{cluster_run.name}:spec.yaml")
    done = cluster_run.stoker(
        "shell", cluster_run.name, "--", "sh", "-c", "pwd; cat; echo bad >&2; exit 7", input=b"typed", code=7
    )
    assert done.stdout.decode() == f"/stoker/runs/{cluster_run.name}\ntyped"
    assert done.stderr.decode() == "bad\n"
    assert not [name for name in cluster_run.pods(f"stoker.dev/reader={cluster_run.name}") if "shell" in name]


def test_env_shows_the_environment_of_a_worker_without_secrets(cluster_run: ClusterRun, live: str) -> None:
    spec = cluster_run.run.any_spec()
    cluster_run.run.write_spec(spec.model_copy(update={"on": spec.on.model_copy(update={"workers": 2})}))
    done = cluster_run.stoker("env", cluster_run.name, "--rank", "1", "--json")
    record = json.loads(done.stdout)
    assert record["pod"] == live
    assert record["environment"]["PLAIN"] == "shown"
    assert record["environment"]["HF_TOKEN"] == "***"
    assert b"hf_verysecret" not in done.stdout
    assert record["versions"]["torch"]
    assert any(mount["path"] == "/stoker" for mount in record["mounts"])
    assert "rank 5 now" in cluster_run.stoker("env", cluster_run.name, "--rank", "5", code=2).stderr.decode()
