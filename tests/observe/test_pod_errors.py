"""Which of the pods that failed is the reason, from the ends of their logs."""

import itertools

from stoker.observe.pod_errors import NOTHING, PodError, first_cause, pod_error
from stoker.spec import contract

PEER = "RuntimeError: Connection closed by peer"
OWN = PodError(text="KeyError: 42", kind="own")
VICTIM = PodError(text=PEER, kind="symptom")


def test_the_ranks_of_a_pod_are_told_apart() -> None:
    lines = ["[0] Traceback (most recent call last):", f"[1] {PEER}", "[0]   File x", "[0] KeyError: 42", f"[1] {PEER}"]
    assert pod_error(lines) == OWN
    assert pod_error([f"[1] {PEER}", "stoker: node 1 (pod x) follows node 0 at y"]) == VICTIM
    assert pod_error(["stoker: node 1 (pod x) leads"]) == NOTHING
    assert (
        pod_error(["[0] step 5", "stoker: node 1 (pod x) leads"]).text == "it printed no error; its last line: step 5"
    )


def test_the_cause_is_the_same_in_every_order() -> None:
    pods = {"own": OWN, "victim": VICTIM, "silent": NOTHING, "again": NOTHING, "stopped": NOTHING}
    codes = {"own": 1, "victim": 3, "silent": 1, "again": contract.EXIT_AGAIN, "stopped": 143}
    for order in itertools.permutations(pods):
        errors = {pod: pods[pod] for pod in order}
        assert first_cause(errors, codes) == "own"
        del errors["own"]
        assert first_cause(errors, codes) == "silent"
    assert first_cause({}, {}) is None
