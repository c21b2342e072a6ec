"""Launches runs with faults, and makes faults in running ones."""

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
from tests.lab.why.faults import RELAUNCHED, SLEEP, Fault, container
from tests.lab.why.objects import FINALIZER, RESOURCES, abort, apply, claim, namespace_problem, set_ready

TIMEOUT_S = 600.0
POLL_S = 1.0  # many runs are waited for at once


def wait(condition: Callable[[], Any], name: str = "the condition") -> Any:
    """The value of the condition once it is true."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{name} did not become true within {TIMEOUT_S} s"
        time.sleep(POLL_S)
    return value


def built_image(spec: AnySpec) -> str:
    on = kubernetes_on(spec)
    return str(ensure_image(spec, base=str(on.image), repository=str(on.registry)))


@dataclass(frozen=True)
class FaultyRun:
    fault: Fault
    run: RunDir
    job: str


@dataclass(frozen=True)
class FaultInjector:
    """Creates runs with faults in a namespace of the lab."""

    lab: Any
    namespace: Any
    folder: Path
    locked: str
    """The address of a registry with a password."""
    nodes: str
    """The name of the fake nodes."""

    def namespace_of(self, fault: Fault) -> Any:
        """The namespace for a run with this fault, with the problem that it needs."""
        if not fault.namespace:
            return self.namespace
        name = f"{self.namespace.name}-{fault.namespace}"
        self.lab.kubectl("create", "namespace", name)
        kubectl = replace(self.lab.kubectl, namespace=name)
        kubectl.apply(claim(self.namespace.volume), *namespace_problem(fault.namespace, name))
        return replace(self.namespace, name=name, kubectl=kubectl)

    def launch(self, fault: Fault, job: str) -> RunDir:
        """Create a run with the fault, as `launch` would without its checks."""
        namespace = self.namespace_of(fault)
        name = f"{fault.id[:30]}-{uuid.uuid4().hex[:4]}"
        # To launch a run again, a pod with its image reads the volume, which needs Stoker in the image.
        image = {} if RELAUNCHED in fault.typed else {"image": self.lab.bare}
        pod = merged(container(**image, **SLEEP), fault.pod) if fault.sleeps else fault.pod
        overrides = ["script=train.py", f"name={name}", "on.kind=kubernetes", f"on.job={job}", "on.grace=1s"]
        overrides += [f"on.namespace={namespace.name}", f"on.volume={self.namespace.volume}"]
        overrides += [f"on.image=http://{self.lab.base}", f"on.registry=http://{REGISTRY}/tests/runs"]
        overrides += map(self.filled, fault.overrides)
        text = self.filled(json.dumps(pod))
        if "BUILT" in text:  # the run's own image, from the registry with a password
            text = text.replace("BUILT", built_image(load(None, overrides).spec).replace(REGISTRY, self.locked))
        spec = load(None, [*overrides, f"on.pod={text}"]).spec
        run = RunDir(self.folder / "runs" / name)
        run.create(spec, None)
        planned = plan(spec, replace(NO_CLUSTER, namespace=namespace.name), run.path)
        if kubernetes_on(spec).registry:
            planned = with_image(planned, built_image(spec), base=str(kubernetes_on(spec).image))
        for item in planned.objects:
            assert wait(partial(apply, namespace.kubectl, item), f"applying {item['kind']} {name}")
        context = yaml.safe_load(self.lab.kubeconfig.read_text())["current-context"]
        place = planned_place(planned, context=context)
        place.write(run)
        consent.record_image(run, place.image)
        return run

    def filled(self, text: str) -> str:
        """The text with values for its words in capitals."""
        image = f"http://{self.lab.base} on.registry=http://{REGISTRY}/tests/runs"
        values = {"LOCKED": self.locked, "BARE": self.lab.bare, "NODES": self.nodes, "IMAGE": image}
        for word, value in (values | {"VOLUME": self.namespace.volume}).items():
            text = text.replace(word, value)
        return text

    def pods(self, run: RunDir) -> list[dict[str, Any]]:
        place = place_of(run)
        assert place is not None
        kubectl = replace(self.lab.kubectl, namespace=place.namespace)
        pods: list[dict[str, Any]] = kubectl.json("get", "pods", "-l", f"stoker.dev/run={run.name}")["items"]
        return pods

    def pods_in_phase(self, run: RunDir, phase: str) -> list[dict[str, Any]]:
        """Wait until all pods of the run are in this phase."""

        def in_phase() -> list[dict[str, Any]]:
            pods = self.pods(run)
            return pods if all(pod["status"]["phase"] == phase for pod in pods) else []

        pods: list[dict[str, Any]] = wait(in_phase, f"{run.name}: {phase}")
        return pods

    def inject(self, fault: Fault, run: RunDir, job: str) -> None:
        """Make the fault in a run that was launched."""
        kubectl, place = self.namespace.kubectl, place_of(run)
        owner = f"{RESOURCES.get(job, job)}/{run.name}"
        if fault.namespace == "ending":
            self.lab.kubectl("delete", "namespace", str(place and place.namespace), "--wait=false")
        elif fault.inject == "suspend" and job == "vcjob":
            self.pods_in_phase(run, "Running")
            kubectl("create", "--filename=-", input=json.dumps(abort(kubectl.json("get", owner))))
        elif fault.inject == "suspend":
            self.pods_in_phase(run, "Running")
            suspended = {"runPolicy": {"suspend": True}} if job == "pytorchjob" else {"suspend": True}
            kubectl("patch", owner, "--type=merge", "-p", json.dumps({"spec": suspended}))
        elif fault.inject == "delete":
            self.pods_in_phase(run, "Running")
            kubectl("delete", "pods", "-l", f"stoker.dev/run={run.name}", "--wait=false")
        elif fault.inject == "hold":
            [pod] = self.pods_in_phase(run, "Running")
            finalizers = {"metadata": {"finalizers": [FINALIZER]}}
            kubectl("patch", "pod", pod["metadata"]["name"], "--type=merge", "-p", json.dumps(finalizers))
            kubectl("delete", owner, "--cascade=foreground", "--wait=false")
        elif fault.inject == "unplug":
            self.pods_in_phase(run, "Running")
            self.lab.kubectl("delete", "node", f"{self.nodes}-00002")
        elif fault.inject == "silence":
            set_ready(self.lab.kubectl, f"{self.nodes}-silent", ready="True")
            assert wait(lambda: any(pod["spec"].get("nodeName") for pod in self.pods(run)))
            set_ready(self.lab.kubectl, f"{self.nodes}-silent", ready="False")
        elif fault.inject == "gone":
            kubectl("delete", owner, "--wait=true")
        assert place is not None
