import json
import subprocess
import sys


def test_a_good_node_multiplies_correctly_and_reduces_over_its_workers() -> None:
    argv = [sys.executable, "-P", "-m", "stoker.train.preflight", "cpu", "2"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout.splitlines()[-1])
    assert [(one["right"], "error" in one) for one in found["devices"]] == [(True, False)]
    assert found["devices"][0]["tflops"] > 0
    assert (found["all_reduce"]["world"], "error" in found["all_reduce"]) == (2, False)
    assert found["all_reduce"]["gbytes"] > 0
