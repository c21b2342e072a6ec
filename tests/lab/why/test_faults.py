"""`why` reports the cause of each fault within ten seconds, with a remedy that works."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.backends.kubernetes.jobs import KINDS
from tests.lab.why.diagnoses import ANSWER_S, CONCURRENT, diagnose, diagnose_all, not_recovered, type_remedy
from tests.lab.why.faults import FAULTS, MIN_TYPED, PAIRS, RELAUNCHED, Fault
from tests.lab.why.faulty_runs import TIMEOUT_S, FaultInjector, FaultyRun, wait


def kind_for(fault: Fault, index: int, kinds: list[str]) -> str:
    kind = fault.only_kind or kinds[index % len(kinds)]
    return "job" if kind in fault.other_kinds else kind


@pytest.mark.parametrize(
    "kinds", [list(KINDS), *(pytest.param([kind], marks=pytest.mark.soak) for kind in KINDS)], ids="+".join
)
def test_why_reports_each_fault_within_ten_seconds_and_its_remedy_works(
    kinds: list[str], injector: FaultInjector
) -> None:
    runs = {}
    for n, fault in enumerate(FAULTS):
        job = kind_for(fault, n, kinds)
        runs[fault.id] = FaultyRun(fault, injector.launch(fault, job), job)
    if len(kinds) > 1:
        assert len({run.job for run in runs.values()}) >= 3
    transient = {name: run for name, run in runs.items() if run.fault.transient}
    lasting = {name: run for name, run in runs.items() if name not in transient}
    answers = diagnose_all(injector, lasting) | diagnose_all(injector, transient)
    wrong = [f"{name} was never visible" for name in runs if name not in answers]
    for name, answer in answers.items():
        finding = answer.finding
        cause = finding.cause if finding else "nothing"
        if finding is None or finding.id != name or answer.seconds > ANSWER_S:
            wrong.append(f"{name}: {finding and finding.id}, {cause} ({answer.seconds:.1f} s)")
        wrong += [f"{name}: {cause}" for part in runs[name].fault.cause if injector.filled(part) not in cause]
    assert not wrong, "\n".join(wrong)
    for first, second in PAIRS:
        assert answers[first].symptom == answers[second].symptom, f"{first} and {second} have different symptoms"
        assert answers[first].finding.id != answers[second].finding.id
    typed = [run for run in runs.values() if run.fault.typed]
    assert len(typed) >= MIN_TYPED
    relaunched = [(run, answers[run.fault.id].finding.remedy) for run in typed if RELAUNCHED in run.fault.typed]
    with ThreadPoolExecutor(CONCURRENT) as pool:
        errors = list(pool.map(lambda pair: type_remedy(injector, *pair), relaunched))
    errors += [answer.error for answer in answers.values()]
    errors += not_recovered(injector, typed)
    assert not any(errors), "\n".join(filter(None, errors))


@pytest.mark.soak
@pytest.mark.usefixtures("alone")
def test_why_reports_a_controller_that_is_off_and_how_to_start_it(injector: FaultInjector) -> None:
    in_kubeflow = ("-n", "kubeflow")
    fault = Fault(id="controller-off", cause=("scaled to none",), typed=("scale",))
    run = FaultyRun(fault, injector.launch(fault, "pytorchjob"), "pytorchjob")
    injector.pods_in_phase(run.run, "Running")
    injector.lab.kubectl(*in_kubeflow, "scale", "deployment", "training-operator", "--replicas=0")
    try:
        assert wait(lambda: not injector.lab.kubectl(*in_kubeflow, "get", "pods", "-o", "name"))
        injector.namespace.kubectl("delete", "pods", "-l", f"stoker.dev/run={run.run.name}")
        answer = diagnose(run, "")
        assert answer.finding is not None
        assert answer.finding.id == fault.id
        assert answer.seconds < ANSWER_S
        assert not type_remedy(injector, run, answer.finding.remedy)
        assert not not_recovered(injector, [run])
    finally:
        injector.lab.kubectl(*in_kubeflow, "scale", "deployment", "training-operator", "--replicas=1")
        timeout = f"--timeout={TIMEOUT_S:.0f}s"
        injector.lab.kubectl(*in_kubeflow, "rollout", "status", "deployment/training-operator", timeout)
