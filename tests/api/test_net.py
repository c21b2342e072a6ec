"""Which pods and containers of a run `stoker net` asks, as an API server hears it that lets nobody in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.api.net import survey_run
from stoker.backends.kubernetes.jobs import KINDS, job_kind
from stoker.backends.kubernetes.state import MAX_ASKED
from stoker.spec.errors import UserError
from tests.closed_pods import Server, launched, serving


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "kubeconfig") as server:
        yield server


@pytest.mark.parametrize("job", KINDS)
def test_the_supervisors_container_is_asked_whatever_its_kind_calls_it(job: str, api: Server, tmp_path: Path) -> None:
    survey = survey_run(launched(tmp_path, job), nodes=None, gpus=False)
    assert api.asked == [job_kind(job).CONTAINER] * 2
    assert set(survey.lost) == {"demo-0", "demo-1"}


@pytest.mark.usefixtures("api")
def test_what_a_remedy_has_to_name_is_the_runs_own(tmp_path: Path) -> None:
    place = survey_run(launched(tmp_path, "job", "on.avoid=[n-7]"), nodes=None, gpus=False).place
    assert (place.run, place.avoid) == ("demo", ("n-7",))
    assert place.again == "stoker stop demo && stoker launch demo"
    assert (place.kubectl, place.anywhere) == ("kubectl --context lab -n team", "kubectl --context lab")


def test_of_very_many_pods_as_many_are_asked_as_can_be_and_no_fewer(api: Server, tmp_path: Path) -> None:
    api.pods = MAX_ASKED + 1
    survey = survey_run(launched(tmp_path, "job"), nodes=None, gpus=False)
    assert (len(survey.lost), len(api.asked), survey.nodes) == (MAX_ASKED, MAX_ASKED, MAX_ASKED + 1)


def test_of_a_run_that_is_over_that_is_said_at_once_and_no_pod_is_made(api: Server, tmp_path: Path) -> None:
    api.pods, api.done = 0, True
    with pytest.raises(UserError, match=r"run 'demo' has ended \(done\).* stoker net demo --nodes 2; or"):
        survey_run(launched(tmp_path, "job"), nodes=None, gpus=False)
