"""Where runs are planted, and what befalls them."""

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from lab.places import REGISTRY
from stoker.backends.kubernetes.place import place_of
from stoker.backends.kubernetes.plan import NO_CLUSTER, plan, planned_place, with_image
from stoker.backends.kubernetes.pod import merged
from stoker.image.build import ensure_image
from stoker.rundir import RunDir, consent
from stoker.spec.load import load
from stoker.spec.on import kubernetes_on
from stoker.spec.run import AnySpec
from tests.lab.why.faults import NAP, RELAUNCHED, Fault, container
from tests.lab.why.troubles import HELD, RESOURCES, abort, claim, taken, tell, troubles

PATIENCE = 600.0
PAUSE = 1.0  # seconds between two looks: many runs are waited for at once


def wait(what: Callable[[], Any], about: str = "it") -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end, f"{about} was waited for in vain"
        time.sleep(PAUSE)
    return found


def built_image(spec: AnySpec) -> str:
    on = kubernetes_on(spec)
    return str(ensure_image(spec, base=str(on.image), repository=str(on.registry)))


@dataclass(frozen=True)
class Planted:
    fault: Fault
    run: RunDir
    job: str


@dataclass(frozen=True)
class Bed:
    """Where runs are planted."""

    lab: Any
    namespace: Any
    folder: Path
    locked: str
    nodes: str
    """The name of the fake nodes."""

    def home(self, fault: Fault) -> Any:
        """Its namespace, with the trouble that it has."""
        if not fault.home:
            return self.namespace
        name = f"{self.namespace.name}-{fault.home}"
        self.lab.kubectl("create", "namespace", name)
        kubectl = replace(self.lab.kubectl, namespace=name)
        kubectl.apply(claim(self.namespace.volume), *troubles(fault.home, name))
        return replace(self.namespace, name=name, kubectl=kubectl)

    def plant(self, fault: Fault, job: str) -> RunDir:
        """As `launch` would leave it in the cluster, had nothing been looked at before."""
        home = self.home(fault)
        name = f"{fault.id[:30]}-{uuid.uuid4().hex[:4]}"
        # What is launched again goes through a pod of its image, which needs Stoker then.
        image = {} if RELAUNCHED in fault.types else {"image": self.lab.bare}
        pod = merged(container(**image, **NAP), fault.pod) if fault.naps else fault.pod
        words = ["script=train.py", f"name={name}", "on.kind=kubernetes", f"on.job={job}", "on.grace=1s"]
        words += [f"on.namespace={home.name}", f"on.volume={self.namespace.volume}"]
        words += [f"on.image=http://{self.lab.base}", f"on.registry=http://{REGISTRY}/tests/runs"]
        words += map(self.filled, fault.words)
        text = self.filled(json.dumps(pod))
        if "MADE" in text:  # the run's own image, from the registry that is locked
            text = text.replace("MADE", built_image(load(None, words).spec).replace(REGISTRY, self.locked))
        spec = load(None, [*words, f"on.pod={text}"]).spec
        run = RunDir(self.folder / "runs" / name)
        run.create(spec, None)
        planned = plan(spec, replace(NO_CLUSTER, namespace=home.name), run.path)
        if kubernetes_on(spec).registry:
            planned = with_image(planned, built_image(spec), base=str(kubernetes_on(spec).image))
        for one in planned.objects:
            assert wait(partial(taken, home.kubectl, one), f"{one['kind']} {name}")
        context = yaml.safe_load(self.lab.kubeconfig.read_text())["current-context"]
        place = planned_place(planned, context=context)
        place.write(run)
        consent.record_image(run, place.image)
        return run

    def filled(self, text: str) -> str:
        """With what the words in capitals stand for here."""
        image = f"http://{self.lab.base} on.registry=http://{REGISTRY}/tests/runs"
        known = {"LOCKED": self.locked, "BARE": self.lab.bare, "NODES": self.nodes, "IMAGE": image}
        for word, value in (known | {"VOLUME": self.namespace.volume}).items():
            text = text.replace(word, value)
        return text

    def pods(self, run: RunDir) -> list[dict[str, Any]]:
        place = place_of(run)
        assert place is not None
        kubectl = replace(self.lab.kubectl, namespace=place.namespace)
        found: list[dict[str, Any]] = kubectl.json("get", "pods", "-l", f"stoker.dev/run={run.name}")["items"]
        return found

    def awaited(self, run: RunDir, phase: str) -> list[dict[str, Any]]:
        def pods() -> list[dict[str, Any]]:
            found = self.pods(run)
            return found if all(one["status"]["phase"] == phase for one in found) else []

        found: list[dict[str, Any]] = wait(pods, f"{run.name}, {phase},")
        return found

    def befall(self, fault: Fault, run: RunDir, job: str) -> None:
        """What happens to a run that was well."""
        kubectl, place = self.namespace.kubectl, place_of(run)
        owner = f"{RESOURCES.get(job, job)}/{run.name}"
        if fault.home == "ending":
            self.lab.kubectl("delete", "namespace", str(place and place.namespace), "--wait=false")
        elif fault.after == "suspend" and job == "vcjob":
            self.awaited(run, "Running")
            kubectl("create", "--filename=-", input=json.dumps(abort(kubectl.json("get", owner))))
        elif fault.after == "suspend":
            self.awaited(run, "Running")
            suspended = {"runPolicy": {"suspend": True}} if job == "pytorchjob" else {"suspend": True}
            kubectl("patch", owner, "--type=merge", "-p", json.dumps({"spec": suspended}))
        elif fault.after == "delete":
            self.awaited(run, "Running")
            kubectl("delete", "pods", "-l", f"stoker.dev/run={run.name}", "--wait=false")
        elif fault.after == "hold":
            [pod] = self.awaited(run, "Running")
            held = {"metadata": {"finalizers": [HELD]}}
            kubectl("patch", "pod", pod["metadata"]["name"], "--type=merge", "-p", json.dumps(held))
            kubectl("delete", owner, "--cascade=foreground", "--wait=false")
        elif fault.after == "unplug":
            self.awaited(run, "Running")
            self.lab.kubectl("delete", "node", f"{self.nodes}-00002")
        elif fault.after == "silence":
            tell(self.lab.kubectl, f"{self.nodes}-silent", ready="True")
            assert wait(lambda: any(pod["spec"].get("nodeName") for pod in self.pods(run)))
            tell(self.lab.kubectl, f"{self.nodes}-silent", ready="False")
        elif fault.after == "gone":
            kubectl("delete", owner, "--wait=true")
        assert place is not None
