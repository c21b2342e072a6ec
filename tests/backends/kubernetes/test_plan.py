"""The built image of a run, in the objects that were planned with its base."""

from pathlib import Path

import pytest

from stoker.backends.backend import Submission
from stoker.backends.kubernetes.jobs import KINDS
from stoker.backends.kubernetes.plan import NO_CLUSTER, plan, planned_place, with_image
from stoker.spec.load import load


def planned(job: str, *overrides: str) -> Submission:
    settings = ["on.kind=kubernetes", f"on.job={job}", "on.image=http://reg:5000/img:1", "on.volume=vol"]
    return plan(load(None, ["data=x", "until.steps=1", *settings, *overrides]).spec, NO_CLUSTER, Path("runs/demo-abcd"))


@pytest.mark.parametrize("job", KINDS)
def test_the_built_image_replaces_the_base_in_the_container_that_trains(job: str) -> None:
    side = "on.pod={spec: {containers: [{name: side, image: 'reg:5000/img:1'}]}}"
    built = with_image(planned(job, side), "http://reg:5000/runs@sha256:1", base="http://reg:5000/img:1")
    assert planned_place(built).image == "reg:5000/runs@sha256:1"
    assert str(built.objects).count("reg:5000/img:1") == str(planned(job, side).objects).count("'name': 'side'")


@pytest.mark.parametrize("job", KINDS)
def test_an_image_from_on_pod_is_kept(job: str) -> None:
    own = "on.pod={spec: {containers: [{name: pytorch, image: mine:2}]}}"
    built = with_image(planned(job, own), "reg:5000/runs@sha256:1", base="http://reg:5000/img:1")
    assert planned_place(built).image == "mine:2"
