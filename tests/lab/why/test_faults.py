"""Faults made with kubectl or on a node, each told by its cause within ten seconds, with a remedy that works."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.backends.kubernetes.jobs import KINDS
from tests.lab.why.answers import AT_ONCE, QUICK, asked, causes, type_remedy, unmended
from tests.lab.why.bed import PATIENCE, Bed, Planted, wait
from tests.lab.why.faults import FAULTS, LEAST_TYPED, PAIRS, RELAUNCHED, Fault


def kinds_of(fault: Fault, index: int, kinds: list[str]) -> str:
    kind = fault.kind or kinds[index % len(kinds)]
    return "job" if kind in fault.never else kind


@pytest.mark.parametrize(
    "kinds", [list(KINDS), *(pytest.param([kind], marks=pytest.mark.soak) for kind in KINDS)], ids="+".join
)
def test_each_fault_is_told_by_its_cause_within_ten_seconds_and_its_remedy_works(kinds: list[str], bed: Bed) -> None:
    planted = {}
    for n, fault in enumerate(FAULTS):
        job = kinds_of(fault, n, kinds)
        planted[fault.id] = Planted(fault, bed.plant(fault, job), job)
    if len(kinds) > 1:
        assert len({one.job for one in planted.values()}) >= 3
    passing = {name: one for name, one in planted.items() if one.fault.passing}
    told = causes(bed, {name: one for name, one in planted.items() if name not in passing}) | causes(bed, passing)
    wrong = [f"{name} was never to be seen" for name in planted if name not in told]
    for name, one in told.items():
        cause = one.found.cause if one.found else "nothing"
        if one.found is None or one.found.id != name or one.seconds > QUICK:
            wrong.append(f"{name}: {one.found and one.found.id}, {cause} ({one.seconds:.1f} s)")
        wrong += [f"{name}: {cause}" for word in planted[name].fault.says if bed.filled(word) not in cause]
    assert not wrong, "\n".join(wrong)
    for one, other in PAIRS:
        assert told[one].symptom == told[other].symptom, f"{one} and {other} do not look alike"
        assert told[one].found.id != told[other].found.id
    typed = [one for one in planted.values() if one.fault.types]
    assert len(typed) >= LEAST_TYPED
    again = [(one, told[one.fault.id].found.remedy) for one in typed if RELAUNCHED in one.fault.types]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        failed = list(pool.map(lambda each: type_remedy(bed, *each), again))
    failed += [one.failed for one in told.values()]
    failed += unmended(bed, typed)
    assert not any(failed), "\n".join(filter(None, failed))


@pytest.mark.soak
@pytest.mark.usefixtures("alone")
def test_a_controller_that_is_off_is_told_and_started(bed: Bed) -> None:
    home = ("-n", "kubeflow")
    fault = Fault(id="controller-off", says=("scaled to none",), types=("scale",))
    one = Planted(fault, bed.plant(fault, "pytorchjob"), "pytorchjob")
    bed.awaited(one.run, "Running")
    bed.lab.kubectl(*home, "scale", "deployment", "training-operator", "--replicas=0")
    try:
        assert wait(lambda: not bed.lab.kubectl(*home, "get", "pods", "-o", "name"))
        bed.namespace.kubectl("delete", "pods", "-l", f"stoker.dev/run={one.run.name}")
        told = asked(one, "")
        assert told.found is not None
        assert told.found.id == fault.id
        assert told.seconds < QUICK
        assert not type_remedy(bed, one, told.found.remedy)
        assert not unmended(bed, [one])
    finally:
        bed.lab.kubectl(*home, "scale", "deployment", "training-operator", "--replicas=1")
        bed.lab.kubectl(*home, "rollout", "status", "deployment/training-operator", f"--timeout={PATIENCE:.0f}s")
