"""`on.job: auto` chooses a kind that the cluster has, and gives the reason."""

import pytest

from stoker.backends.kubernetes.jobs import KINDS
from stoker.backends.kubernetes.jobs.auto import ORDER, choose_job
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
        (None, "job", "could not be reached"),
    ],
)
def test_the_first_installed_kind_is_chosen(there, job: str, why: str) -> None:
    taken, reason = choose_job(on("on.job=auto"), there, kueue=False)
    assert taken == job
    assert why in reason


def test_a_named_kind_is_used_whatever_is_installed() -> None:
    assert choose_job(on("on.job=pytorchjob"), [*KINDS], kueue=False) == ("pytorchjob", "")
    assert choose_job(on("on.job=auto", "on.runtime=torch"), [*KINDS], kueue=False)[0] == "trainjob"


def test_a_kueue_queue_is_used_by_the_other_kinds() -> None:
    assert choose_job(on("on.job=auto", "on.queue=a"), [*KINDS], kueue=True)[0] == "trainjob"
    assert choose_job(on("on.job=auto", "on.queue=a"), [*KINDS], kueue=False)[0] == "vcjob"
    made = on("on.job=auto", "on.queue=a", "on.queue_make={weight: 1}")
    for there in ([*KINDS], ["job"], None):  # where Volcano is missing, that is what there is to say
        assert choose_job(made, there, kueue=True) == ("vcjob", "on.queue_make is for that kind")
