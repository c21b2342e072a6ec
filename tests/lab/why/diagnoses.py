"""Diagnoses runs with faults, types the remedies, and checks that the runs recover."""

import json
import re
import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from lab.kubectl import Kubectl
from stoker.backends.kubernetes.jobs import KINDS
from stoker.backends.kubernetes.place import place_of
from stoker.diagnose.finding import Finding
from stoker.observe.why import why
from stoker.rundir import RunDir
from tests.lab.why.faults import CANNOT_PULL, RELAUNCHED
from tests.lab.why.faulty_runs import POLL_S, TIMEOUT_S, FaultInjector, FaultyRun
from tests.lab.why.objects import RESOURCES

ANSWER_S = 10.0  # how long a diagnosis may take
CONCURRENT = 3
PLACE_KINDS = ("Node", "Namespace")
COMMAND = re.compile(r"(?:kubectl|stoker (?:stop|launch)) .*?(?=;|, and |, or | \(|\)|$)")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The first answer of `why` with the cause, or the last without it."""

    finding: Finding | None
    seconds: float
    """From the first question to this answer; the fault was visible in the cluster."""
    symptom: str
    error: str = ""
    """The error when the remedy was typed."""


def diagnose_all(injector: FaultInjector, runs: dict[str, FaultyRun]) -> dict[str, Answer]:
    """The answers by the names of the faults. Each run is diagnosed as soon as its fault is visible in the cluster,
    several at once. Its remedy is typed then, unless it launches the run again: operators give up some runs soon.
    """
    deadline = time.monotonic() + TIMEOUT_S
    answers: dict[str, Future[Answer]] = {}
    visible_since: dict[str, float] = {}
    with ThreadPoolExecutor(CONCURRENT) as pool, ThreadPoolExecutor(len(runs)) as injections:
        injected = {name: injections.submit(injector.inject, run.fault, run.run, run.job) for name, run in runs.items()}
        while len(answers) < len(runs) and time.monotonic() < deadline:
            objects = snapshot(injector.lab.kubectl)
            now = time.monotonic()
            for name, run in runs.items():
                if name in answers or not injected[name].done():
                    continue
                injected[name].result()
                related = related_objects(objects, run.run)
                text = json.dumps(related)
                if not all(re.search(pattern, text) for pattern in run.fault.visible):
                    visible_since.pop(name, None)
                elif now - visible_since.setdefault(name, now) >= run.fault.visible_for_s:
                    answers[name] = pool.submit(diagnose_and_fix, injector, run, symptom(related))
            time.sleep(POLL_S)
        return {name: answer.result() for name, answer in answers.items()}


def diagnose_and_fix(injector: FaultInjector, run: FaultyRun, symptom: str) -> Answer:
    answer = diagnose(run, symptom)
    if answer.seconds > ANSWER_S:  # the other diagnoses may have taken the time
        answer = diagnose(run, symptom)
    typed = run.fault.typed
    if not typed or RELAUNCHED in typed or answer.finding is None or answer.finding.id != run.fault.id:
        return answer
    return replace(answer, error=type_remedy(injector, run, answer.finding.remedy))


def diagnose(run: FaultyRun, symptom: str) -> Answer:
    """Ask until the answer is the fault, or the time is over."""
    began = time.monotonic()
    while True:
        causes = why(run.run).causes
        seconds = time.monotonic() - began
        if (causes and causes[0].id == run.fault.id) or seconds > ANSWER_S:
            return Answer(finding=causes[0] if causes else None, seconds=seconds, symptom=symptom)


def snapshot(kubectl: Kubectl) -> list[dict[str, Any]]:
    kinds = ",".join(["pods", "events", *(RESOURCES.get(kind, f"{kind}s") for kind in KINDS)])
    objects = kubectl.json("get", kinds, "--all-namespaces")["items"]
    return [*objects, *kubectl.json("get", "nodes")["items"], *kubectl.json("get", "namespaces")["items"]]


def related_objects(objects: list[dict[str, Any]], run: RunDir) -> list[dict[str, Any]]:
    """The run's pods, job and events, its namespace, and the nodes of its pods."""
    place = place_of(run)
    assert place is not None

    def is_of_run(item: dict[str, Any]) -> bool:
        name = item.get("involvedObject", item["metadata"]).get("name", "")
        return item["metadata"].get("namespace") == place.namespace and f"{name}-".startswith(f"{run.name}-")

    of_run = [item for item in objects if is_of_run(item)]
    places = {place.namespace, *(item["spec"].get("nodeName") for item in of_run if item["kind"] == "Pod")}
    return [*of_run, *(item for item in objects if item["kind"] in PLACE_KINDS and item["metadata"]["name"] in places)]


def symptom(related: list[dict[str, Any]]) -> str:
    """What `kubectl get pods` would show."""
    pods = [item for item in related if item["kind"] == "Pod"]
    text = json.dumps([pod["status"] for pod in pods])
    if any("deletionTimestamp" in pod["metadata"] for pod in pods):
        return "terminating"
    if any(pod["status"].get("phase") == "Failed" for pod in pods):
        return "failed"
    return "cannot pull" if re.search(CANNOT_PULL[0], text) else "pending"


def type_remedy(injector: FaultInjector, run: FaultyRun, remedy: str) -> str:
    """Run the commands of the remedy, with values for the words in capitals. Return the error, or an empty text."""
    fault, out = run.fault, ""
    commands = COMMAND.findall(remedy)
    for word in fault.typed:
        line = next((line for line in commands if word in line), "")
        for name, value in fault.placeholders.items():
            line = re.sub(rf"\b{name}\b", lambda _, value=value: injector.filled(value), line)
        if not line:
            return f"{fault.id}: no {word} in {remedy}"
        done = subprocess.run(["bash", "-c", line], cwd=injector.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{fault.id}: {line}: {done.stderr}"
        out += done.stdout
    return "" if fault.prints in out else f"{fault.id}: {out}"


def not_recovered(injector: FaultInjector, runs: list[FaultyRun]) -> list[str]:
    """The runs that have not recovered within the timeout."""
    remaining = [run for run in runs if not run.fault.prints]
    deadline = time.monotonic() + TIMEOUT_S
    while remaining and time.monotonic() < deadline:
        pods = injector.lab.kubectl.json("get", "pods", "--all-namespaces", "-l", "stoker.dev/run")["items"]
        remaining = [run for run in remaining if not has_recovered(run, pods)]
        time.sleep(POLL_S)
    return [f"{run.run.name} has not recovered: {[cause.cause for cause in why(run.run).causes]}" for run in remaining]


def has_recovered(run: FaultyRun, pods: list[dict[str, Any]]) -> bool:
    expected = run.fault.recovered
    if expected == "done":
        return why(run.run).state == "done"
    if expected == "cleared":
        return [cause.id for cause in why(run.run).causes[:1]] != [run.fault.id]
    phases = [pod["status"]["phase"] for pod in pods if pod["metadata"]["labels"]["stoker.dev/run"] == run.run.name]
    return not phases if expected == "gone" else set(phases) == {expected}
