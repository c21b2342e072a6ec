"""`on.job: auto` takes what the cluster has, and says why."""

import pytest

from stoker.launch.jobs import KINDS
from stoker.launch.jobs.auto import ORDER, chosen
from stoker.spec.load import load


def on(*words: str):
    return load(None, ["data=x", "until.steps=1", "on.kind=kubernetes", *words]).spec.on


def test_every_kind_has_its_place_in_the_order() -> None:
    assert set(ORDER) == set(KINDS)


@pytest.mark.parametrize(
    ("there", "job", "why"),
    [
        (["job", "jobset", "vcjob"], "vcjob", "Volcano is installed, and its pods start together"),
        (["job", "jobset"], "jobset", "JobSet is installed"),
        (["job"], "job", "no operator is installed"),
        (None, "job", "could not be looked at"),
    ],
)
def test_the_first_that_is_installed_is_taken(there, job: str, why: str) -> None:
    taken, reason = chosen(on("on.job=auto"), there, kueue=False)
    assert taken == job
    assert why in reason


def test_what_is_named_is_taken_whatever_there_is() -> None:
    assert chosen(on("on.job=pytorchjob"), [*KINDS], kueue=False) == ("pytorchjob", "")
    assert chosen(on("on.job=auto", "on.runtime=torch"), [*KINDS], kueue=False)[0] == "trainjob"


def test_a_queue_of_kueues_is_for_the_other_kinds() -> None:
    assert chosen(on("on.job=auto", "on.queue=a"), [*KINDS], kueue=True)[0] == "trainjob"
    assert chosen(on("on.job=auto", "on.queue=a"), [*KINDS], kueue=False)[0] == "vcjob"
    made = on("on.job=auto", "on.queue=a", "on.queue_make={weight: 1}")
    for there in ([*KINDS], ["job"], None):  # where Volcano is missing, that is what there is to say
        assert chosen(made, there, kueue=True) == ("vcjob", "on.queue_make is for that kind")
