"""Which of several failed pods caused the failure, from the ends of their logs."""

import itertools

from stoker.backends.kubernetes.facts.pod_errors import NO_ERROR, PodError, first_cause, pod_error
from stoker.spec import contract

PEER = "RuntimeError: Connection closed by peer"
OWN = PodError(text="KeyError: 42", kind="own")
VICTIM = PodError(text=PEER, kind="symptom")


def test_the_lines_of_a_pod_are_separated_by_rank() -> None:
    lines = ["[0] Traceback (most recent call last):", f"[1] {PEER}", "[0]   File x", "[0] KeyError: 42", f"[1] {PEER}"]
    assert pod_error(lines) == OWN
    assert pod_error([f"[1] {PEER}", "stoker: node 1 (pod x) follows node 0 at y"]) == VICTIM
    assert pod_error(["stoker: node 1 (pod x) leads"]) == NO_ERROR
    assert (
        pod_error(["[0] step 5", "stoker: node 1 (pod x) leads"]).text == "it printed no error; its last line: step 5"
    )


def test_the_cause_is_the_same_in_every_order() -> None:
    pods = {"own": OWN, "victim": VICTIM, "silent": NO_ERROR, "again": NO_ERROR, "stopped": NO_ERROR}
    codes = {"own": 1, "victim": 3, "silent": 1, "again": contract.EXIT_AGAIN, "stopped": 143}
    for order in itertools.permutations(pods):
        errors = {pod: pods[pod] for pod in order}
        assert first_cause(errors, codes) == "own"
        del errors["own"]
        assert first_cause(errors, codes) == "silent"
    assert first_cause({}, {}) is None
