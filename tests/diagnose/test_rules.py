"""The rules are validated when they are read, and root causes come first."""

import re
from dataclasses import replace

import pytest
from pydantic import ValidationError

from stoker.diagnose.facts import ClaimFact, DiagnosisFacts, EventFact, PodFact, RunFact
from stoker.diagnose.rules import FILE, Rule, findings, rules

RUN = RunFact(run="books", state="waiting", relaunch="stoker stop books && stoker launch books", in_cluster=True)
PLAIN = {"id": "one", "of": "pod", "where": {}, "cause": "it is {pod}", "remedy": "Wait"}


def test_every_rule_is_valid_and_has_a_unique_id() -> None:
    names = [rule.id for rule in rules()]
    assert len(names) == len(set(names)) > 50
    assert all(rule.cause and rule.remedy for rule in rules())
    assert not re.search(r"\btest[-_]|lab/|10\.\d+\.\d+\.", FILE.read_text()), "a rule must not know about tests"


def test_every_remedy_has_a_command_or_an_action() -> None:
    action = re.compile(
        r"\{relaunch\}|\{advice\}|\{install\}|\{resume\}|kubectl|stoker |[Ww]ait|Ask your cluster admin"
    )
    assert not [rule.id for rule in rules() if not action.search(rule.remedy)]


@pytest.mark.parametrize(
    ("change", "problem"),
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
def test_an_invalid_rule_is_refused(change: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Rule.model_validate(PLAIN | change)


@pytest.mark.parametrize(
    ("where", "remedy"),
    [
        ({"message": {"match": "no (?P<what>[^ ]+)"}}, "kubectl create {what}"),
        ({"message": {"match": "no (?P<what>\\S+)"}}, "kubectl create {what}"),
        ({}, "kubectl create {message}"),
    ],
)
def test_a_remedy_must_not_contain_untrusted_text(where: dict[str, object], remedy: str) -> None:
    with pytest.raises(ValidationError, match="the remedy contains"):
        Rule.model_validate(PLAIN | {"where": where, "remedy": remedy})


def test_a_remedy_may_contain_the_name_of_an_events_pod() -> None:
    about = PLAIN | {"of": "event", "cause": "it is {name}", "remedy": "kubectl delete pod {name}"}
    with pytest.raises(ValidationError, match="the remedy contains name"):
        Rule.model_validate(about)
    assert Rule.model_validate(about | {"where": {"object_kind": "Pod"}})


def test_a_command_in_a_message_is_not_in_the_remedy() -> None:
    run = replace(RUN, missing=1)
    message = 'error looking up service account team/$(rm -rf ~): serviceaccount "$(rm -rf ~)" not found'
    event = EventFact(object_kind="Job", name="books", reason="FailedCreate", message=message)
    matches = findings(DiagnosisFacts(run=run, events=(event,)))
    assert matches
    assert not any("rm -rf" in finding.remedy for finding in matches)


def test_a_pod_without_a_network_is_not_a_refused_pod() -> None:
    message = "failed to setup network for sandbox: plugin type=cni failed"
    event = EventFact(object_kind="Pod", name="books-0", reason="FailedCreatePodSandBox", message=message)
    matches = findings(DiagnosisFacts(run=replace(RUN, missing=1), events=(event,)))
    assert [finding.id for finding in matches] == ["network-not-ready", "pods-missing"]


def test_texts_use_fields_of_the_fact_and_the_run_and_named_groups() -> None:
    rule = Rule.model_validate(
        PLAIN
        | {
            "where": {"message": {"match": 'no "(?P<what>[a-z]+)"'}},
            "cause": "{pod} of {run} lacks {what}{others}",
            "remedy": "Run: {relaunch} x=1",
        }
    )
    pods = tuple(PodFact(pod=f"books-{n}", message='there is\n no "soap"') for n in range(3))
    [finding] = findings(DiagnosisFacts(run=RUN, pods=pods), [rule])
    assert finding.cause == "books-0 of books lacks soap (and 2 more)"
    assert finding.remedy == "Run: stoker stop books && stoker launch books x=1"
    assert finding.count == 3


def test_conditions_on_numbers_values_and_lists() -> None:
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


def test_a_message_of_another_program_is_shortened_to_one_line() -> None:
    rule = Rule.model_validate(PLAIN | {"cause": "it says {message}"})
    [finding] = findings(DiagnosisFacts(run=RUN, pods=(PodFact(pod="p", message="long\n" * 1000),)), [rule])
    assert "\n" not in finding.cause
    assert len(finding.cause) < 400


def test_the_root_cause_comes_first() -> None:
    pod = PodFact(pod="books-0", phase="Pending", unscheduled='persistentvolumeclaim "x" not found', waiting_s=99.0)
    event = EventFact(object_kind="Pod", name="books-0", reason="FailedScheduling", message="0/2 nodes are available")
    facts = DiagnosisFacts(run=RUN, pods=(pod,), events=(event,), claims=(ClaimFact(claim="x", state="missing"),))
    ids = [finding.id for finding in findings(facts)]
    assert ids[0] == "claim-missing"
    assert "unscheduled" in ids
