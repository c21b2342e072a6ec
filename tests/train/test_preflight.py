import json
import subprocess
import sys


def test_a_good_node_multiplies_correctly_and_reduces_over_its_workers() -> None:
    argv = [sys.executable, "-P", "-m", "stoker.train.preflight", "cpu", "2"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    report = json.loads(done.stdout.splitlines()[-1])
    assert [(chip["right"], "error" in chip) for chip in report["devices"]] == [(True, False)]
    assert report["devices"][0]["tflops"] > 0
    assert (report["all_reduce"]["world"], "error" in report["all_reduce"]) == (2, False)
    assert report["all_reduce"]["gbytes"] > 0
