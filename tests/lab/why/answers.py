"""What `why` says of planted runs, and what comes of typing it."""

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
from tests.lab.why.bed import PATIENCE, PAUSE, Bed, Planted
from tests.lab.why.faults import PULLS, RELAUNCHED
from tests.lab.why.troubles import RESOURCES

QUICK = 10.0  # seconds that an answer may take
AT_ONCE = 3
HOMES = ("Node", "Namespace")
COMMAND = re.compile(r"(?:kubectl|stoker (?:stop|launch)) .*?(?=;|, and |, or | \(|\)|$)")


@dataclass(frozen=True, kw_only=True)
class Told:
    """The first answer that named the cause, or the last that did not."""

    found: Finding | None
    seconds: float
    """Since somebody asked, with the fault to be seen in the cluster."""
    symptom: str
    failed: str = ""
    """What went wrong when the remedy was typed."""


def causes(bed: Bed, planted: dict[str, Planted]) -> dict[str, Told]:
    """By the names of the faults. Each is asked about as soon as it can be seen in the cluster, several at once, and
    its remedy is typed, but for those that launch anew: operators give up some runs after a while.
    """
    end = time.monotonic() + PATIENCE
    told: dict[str, Future[Told]] = {}
    since: dict[str, float] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool, ThreadPoolExecutor(len(planted)) as fate:
        struck = {name: fate.submit(bed.befall, one.fault, one.run, one.job) for name, one in planted.items()}
        while len(told) < len(planted) and time.monotonic() < end:
            objects = snapshot(bed.lab.kubectl)
            now = time.monotonic()
            for name, one in planted.items():
                if name in told or not struck[name].done():
                    continue
                struck[name].result()
                ours = belonging(objects, one.run)
                text = json.dumps(ours)
                if not all(re.search(word, text) for word in one.fault.shows):
                    since.pop(name, None)
                elif now - since.setdefault(name, now) >= one.fault.lasts:
                    told[name] = pool.submit(answered, bed, one, symptom(ours))
            time.sleep(PAUSE)
        return {name: answer.result() for name, answer in told.items()}


def answered(bed: Bed, one: Planted, symptom: str) -> Told:
    told = asked(one, symptom)
    if told.seconds > QUICK:  # it may have been all the others that took the time
        told = asked(one, symptom)
    if not one.fault.types or RELAUNCHED in one.fault.types or told.found is None or told.found.id != one.fault.id:
        return told
    return replace(told, failed=type_remedy(bed, one, told.found.remedy))


def asked(one: Planted, symptom: str) -> Told:
    """Again until it is the cause, or ten seconds are over."""
    began = time.monotonic()
    while True:
        found = why(one.run).causes
        took = time.monotonic() - began
        if (found and found[0].id == one.fault.id) or took > QUICK:
            return Told(found=found[0] if found else None, seconds=took, symptom=symptom)


def snapshot(kubectl: Kubectl) -> list[dict[str, Any]]:
    kinds = ",".join(["pods", "events", *(RESOURCES.get(kind, f"{kind}s") for kind in KINDS)])
    inside = kubectl.json("get", kinds, "--all-namespaces")["items"]
    return [*inside, *kubectl.json("get", "nodes")["items"], *kubectl.json("get", "namespaces")["items"]]


def belonging(objects: list[dict[str, Any]], run: RunDir) -> list[dict[str, Any]]:
    """The run's pods, job and events, its namespace, and the nodes that its pods are on."""
    place = place_of(run)
    assert place is not None

    def ours(one: dict[str, Any]) -> bool:
        name = one.get("involvedObject", one["metadata"]).get("name", "")
        return one["metadata"].get("namespace") == place.namespace and f"{name}-".startswith(f"{run.name}-")

    found = [one for one in objects if ours(one)]
    there = {place.namespace, *(one["spec"].get("nodeName") for one in found if one["kind"] == "Pod")}
    return [*found, *(one for one in objects if one["kind"] in HOMES and one["metadata"]["name"] in there)]


def symptom(ours: list[dict[str, Any]]) -> str:
    """All that `kubectl get pods` would show of it."""
    pods = [one for one in ours if one["kind"] == "Pod"]
    text = json.dumps([one["status"] for one in pods])
    if any("deletionTimestamp" in one["metadata"] for one in pods):
        return "terminating"
    if any(one["status"].get("phase") == "Failed" for one in pods):
        return "failed"
    return "cannot pull" if re.search(PULLS[0], text) else "pending"


def type_remedy(bed: Bed, one: Planted, remedy: str) -> str:
    """As it is written, but for the words in capitals; says what went wrong."""
    fault, out = one.fault, ""
    known = COMMAND.findall(remedy)
    for word in fault.types:
        line = next((line for line in known if word in line), "")
        for name, value in fault.filled.items():
            line = re.sub(rf"\b{name}\b", lambda _, value=value: bed.filled(value), line)
        if not line:
            return f"{fault.id}: no {word} in {remedy}"
        done = subprocess.run(["bash", "-c", line], cwd=bed.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{fault.id}: {line}: {done.stderr}"
        out += done.stdout
    return "" if fault.prints in out else f"{fault.id}: {out}"


def unmended(bed: Bed, ones: list[Planted]) -> list[str]:
    """The runs that are still not well after a while."""
    left = [one for one in ones if not one.fault.prints]
    end = time.monotonic() + PATIENCE
    while left and time.monotonic() < end:
        pods = bed.lab.kubectl.json("get", "pods", "--all-namespaces", "-l", "stoker.dev/run")["items"]
        left = [one for one in left if not is_mended(one, pods)]
        time.sleep(PAUSE)
    return [f"{one.run.name} is still not well: {[cause.cause for cause in why(one.run).causes]}" for one in left]


def is_mended(one: Planted, pods: list[dict[str, Any]]) -> bool:
    good = one.fault.good
    if good == "done":
        return why(one.run).state == "done"
    if good == "cleared":
        return [cause.id for cause in why(one.run).causes[:1]] != [one.fault.id]
    phases = [pod["status"]["phase"] for pod in pods if pod["metadata"]["labels"]["stoker.dev/run"] == one.run.name]
    return not phases if good == "gone" else set(phases) == {good}
