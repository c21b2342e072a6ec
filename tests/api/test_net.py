"""Which pods and containers `stoker net` uses, with an API server that refuses every exec."""

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
def test_the_agent_runs_in_the_supervisors_container_of_every_job_kind(job: str, api: Server, tmp_path: Path) -> None:
    survey = survey_run(launched(tmp_path, job), nodes=None, gpus=False)
    assert api.asked == [job_kind(job).CONTAINER] * 2
    assert set(survey.lost) == {"demo-0", "demo-1"}


@pytest.mark.usefixtures("api")
def test_remedies_name_the_runs_own_context_and_namespace(tmp_path: Path) -> None:
    place = survey_run(launched(tmp_path, "job", "on.avoid=[n-7]"), nodes=None, gpus=False).place
    assert (place.run, place.avoid) == ("demo", ("n-7",))
    assert place.again == "stoker stop demo && stoker launch demo"
    assert (place.kubectl, place.anywhere) == ("kubectl --context lab -n team", "kubectl --context lab")


def test_a_sample_of_many_pods_has_the_maximum_size(api: Server, tmp_path: Path) -> None:
    api.pods = MAX_ASKED + 1
    survey = survey_run(launched(tmp_path, "job"), nodes=None, gpus=False)
    assert (len(survey.lost), len(api.asked), survey.nodes) == (MAX_ASKED, MAX_ASKED, MAX_ASKED + 1)


def test_a_run_that_has_ended_is_refused_and_no_pod_is_created(api: Server, tmp_path: Path) -> None:
    api.pods, api.done = 0, True
    with pytest.raises(UserError, match=r"run 'demo' has ended \(done\).* stoker net demo --nodes 2; or"):
        survey_run(launched(tmp_path, "job"), nodes=None, gpus=False)
