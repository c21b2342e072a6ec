"""The rules are data that is checked when it is read: they speak of what there is, and the deeper cause comes first."""

import re
from dataclasses import replace

import pytest
from pydantic import ValidationError

from stoker.diagnose.facts import ClaimFact, DiagnosisFacts, EventFact, PodFact, RunFact
from stoker.diagnose.rules import FILE, Rule, findings, rules

RUN = RunFact(run="books", state="waiting", relaunch="stoker stop books && stoker launch books", in_cluster=True)
PLAIN = {"id": "one", "of": "pod", "where": {}, "cause": "it is {pod}", "remedy": "Wait"}


def test_every_rule_is_sound_and_has_a_name_of_its_own() -> None:
    names = [rule.id for rule in rules()]
    assert len(names) == len(set(names)) > 50
    assert all(rule.cause and rule.remedy for rule in rules())
    assert not re.search(r"\btest[-_]|lab/|10\.\d+\.\d+\.", FILE.read_text()), "a rule knows a test"


def test_every_remedy_says_what_to_do() -> None:
    words = re.compile(r"\{relaunch\}|\{advice\}|\{install\}|\{resume\}|kubectl|stoker |[Ww]ait|Ask your cluster admin")
    assert not [rule.id for rule in rules() if not words.search(rule.remedy)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"where": {"colour": "red"}}, "PodFact has no colour"),
        ({"run": {"colour": "red"}}, "RunFact has no colour"),
        ({"where": {"pod": {"match": "("}}}, "not a regular expression"),
        ({"where": {"pod": {"like": "x"}}}, "where"),
        ({"cause": "it is {colour}"}, "there is no field or group colour"),
        ({"of": "planet"}, "of"),
        ({"id": "Has Spaces"}, "id"),
        ({"rank": 3}, "rank"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Rule.model_validate(PLAIN | change)


@pytest.mark.parametrize(
    ("where", "remedy"),
    [
        ({"message": {"match": "no (?P<what>[^ ]+)"}}, "kubectl create {what}"),
        ({"message": {"match": "no (?P<what>\\S+)"}}, "kubectl create {what}"),
        ({}, "kubectl create {message}"),
    ],
)
def test_what_anybody_may_have_written_is_not_to_be_typed(where: dict[str, object], remedy: str) -> None:
    with pytest.raises(ValidationError, match="the remedy contains"):
        Rule.model_validate(PLAIN | {"where": where, "remedy": remedy})


def test_what_an_event_is_about_may_be_typed_where_it_is_a_pod() -> None:
    about = PLAIN | {"of": "event", "cause": "it is {name}", "remedy": "kubectl delete pod {name}"}
    with pytest.raises(ValidationError, match="the remedy contains name"):
        Rule.model_validate(about)
    assert Rule.model_validate(about | {"where": {"object_kind": "Pod"}})


def test_a_message_with_a_command_in_it_does_not_get_into_a_remedy() -> None:
    run = replace(RUN, missing=1)
    said = 'error looking up service account team/$(rm -rf ~): serviceaccount "$(rm -rf ~)" not found'
    event = EventFact(object_kind="Job", name="books", reason="FailedCreate", message=said)
    found = findings(DiagnosisFacts(run=run, events=(event,)))
    assert found
    assert not any("rm -rf" in one.remedy for one in found)


def test_a_pod_that_gets_no_network_is_not_one_that_is_refused() -> None:
    said = "failed to setup network for sandbox: plugin type=cni failed"
    event = EventFact(object_kind="Pod", name="books-0", reason="FailedCreatePodSandBox", message=said)
    found = findings(DiagnosisFacts(run=replace(RUN, missing=1), events=(event,)))
    assert [one.id for one in found] == ["network-not-ready", "pods-missing"]


def test_words_come_from_the_thing_the_run_and_the_groups_of_a_match() -> None:
    rule = Rule.model_validate(
        PLAIN
        | {
            "where": {"message": {"match": 'no "(?P<what>[a-z]+)"'}},
            "cause": "{pod} of {run} lacks {what}{others}",
            "remedy": "Run: {relaunch} x=1",
        }
    )
    pods = tuple(PodFact(pod=f"books-{n}", message='there is\n no "soap"') for n in range(3))
    [found] = findings(DiagnosisFacts(run=RUN, pods=pods), [rule])
    assert found.cause == "books-0 of books lacks soap (and 2 more)"
    assert found.remedy == "Run: stoker stop books && stoker launch books x=1"
    assert found.count == 3


def test_numbers_values_and_lists_are_told_apart() -> None:
    def fits(where: dict[str, object], **pod: object) -> bool:
        rule = Rule.model_validate(PLAIN | {"where": where})
        return bool(findings(DiagnosisFacts(run=RUN, pods=(PodFact(pod="p", **pod),)), [rule]))  # type: ignore[arg-type]

    assert fits({"running_s": {"above": 5}}, running_s=6.0)
    assert not fits({"running_s": {"above": 5}}, running_s=5.0)
    assert fits({"overdue_s": {"below": 0}}, overdue_s=-1.0)
    assert not fits({"overdue_s": {"below": 0}})
    assert fits({"phase": ["Running", "Failed"]}, phase="Failed")
    assert not fits({"phase": "running"}, phase="Running")
    assert not fits({"scheduler_saw": 1}, scheduler_saw=True)
    assert fits({"message": {"unlike": "x"}}, message="y")
    assert fits({"message": {"present": False}})
    assert not fits({"message": {"present": True}})


def test_what_others_said_is_one_line_and_not_too_long() -> None:
    rule = Rule.model_validate(PLAIN | {"cause": "it says {message}"})
    [found] = findings(DiagnosisFacts(run=RUN, pods=(PodFact(pod="p", message="long\n" * 1000),)), [rule])
    assert "\n" not in found.cause
    assert len(found.cause) < 400


def test_the_deeper_cause_beats_what_follows_from_it() -> None:
    pod = PodFact(pod="books-0", phase="Pending", unscheduled='persistentvolumeclaim "x" not found', waiting_s=99.0)
    event = EventFact(object_kind="Pod", name="books-0", reason="FailedScheduling", message="0/2 nodes are available")
    facts = DiagnosisFacts(run=RUN, pods=(pod,), events=(event,), claims=(ClaimFact(claim="x", state="missing"),))
    found = [one.id for one in findings(facts)]
    assert found[0] == "claim-missing"
    assert "unscheduled" in found
