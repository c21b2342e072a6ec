"""Code that a run names is executed only if this user launched the run there, or trusts it."""

import shutil
import stat
from pathlib import Path

import pytest

from stoker.backends.kubernetes.place import ClusterPlace
from stoker.rundir import RunDir, consent
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.run import AnySpec
from stoker.spec.trust import trusting


def spec(*overrides: str) -> AnySpec:
    end = [] if overrides[0].startswith("script") else ["until.steps=1"]
    return load(None, [*overrides, *end]).spec


def named(*overrides: str) -> list[str]:
    return consent.launched_code(spec(*overrides))


OVERRIDES_WITH_CODE = ["data=books.txt", "model.family=mine:build", "callbacks=[mine:tell]", "env.LD_PRELOAD=mine.so"]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


def test_code_that_is_executed_is_listed() -> None:
    assert named("data=books.txt") == []
    assert named(*OVERRIDES_WITH_CODE) == ["model.family=mine:build", "env.LD_PRELOAD=mine.so", "callbacks=mine:tell"]
    assert named("data.mix=[{path: mine:one, weight: 1}, {path: two.txt, weight: 1}]") == ["data.path=mine:one"]
    assert named("script=/x/work.py", "secrets.KEY=file:/home/me/key") == [
        "script=/x/work.py", "secrets.KEY=file:/home/me/key",
    ]  # fmt: skip
    cluster = named("data=b.txt", "on.kind=kubernetes", "on.image=evil/image", "on.pod={spec: {hostPID: true}}")
    assert cluster == ["on.image=evil/image", 'on.pod={"spec": {"hostPID": true}}']


def test_a_run_that_was_not_launched_here_is_refused_and_its_code_is_named(run: RunDir) -> None:
    with pytest.raises(UserError, match=r"names code .*: model\.family=mine:build, env\.LD_PRELOAD, ") as refused:
        consent.require(run, named(*OVERRIDES_WITH_CODE))
    assert "mine.so" not in str(refused.value), "the value of a variable is not shown"
    assert "--trust" in refused.value.remedy


def test_a_run_that_was_launched_here_is_allowed(run: RunDir, state_folder: Path) -> None:
    consent.record(run, spec(*OVERRIDES_WITH_CODE))
    consent.require(run, named(*OVERRIDES_WITH_CODE))
    (folder,) = state_folder.glob("stoker/launched")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all("mine.so" not in file.read_text() for file in folder.iterdir())


def test_only_exactly_the_code_that_was_launched_is_trusted(run: RunDir) -> None:
    consent.record(run, spec(*OVERRIDES_WITH_CODE))
    for other in ("model.family=evil:build", "env.LD_PRELOAD=evil.so", "env.PYTHONPATH=/evil", "callbacks=[evil:tell]"):
        with pytest.raises(UserError, match="names code"):
            consent.require(run, named(*OVERRIDES_WITH_CODE, other))
    consent.record(run, spec("data=books.txt"))
    with pytest.raises(UserError, match="names code"):
        consent.require(run, named(*OVERRIDES_WITH_CODE))


def test_a_copy_of_a_run_is_another_run(run: RunDir, tmp_path: Path) -> None:
    run.path.mkdir()
    consent.record(run, spec(*OVERRIDES_WITH_CODE))
    copy = RunDir(Path(shutil.copytree(run.path, tmp_path / "copy")))
    with pytest.raises(UserError, match="names code"):
        consent.require(copy, named(*OVERRIDES_WITH_CODE))
    (tmp_path / "link").symlink_to(run.path)
    consent.require(RunDir(tmp_path / "link"), named(*OVERRIDES_WITH_CODE))


def test_a_user_may_trust_any_run(run: RunDir) -> None:
    with trusting(True), trusting(False):
        consent.require(run, named(*OVERRIDES_WITH_CODE))
    with pytest.raises(UserError, match="names code"), trusting(False):
        consent.require(run, named(*OVERRIDES_WITH_CODE))


def test_pods_are_created_only_with_the_image_that_the_run_was_launched_with(run: RunDir) -> None:
    run.create(spec(*OVERRIDES_WITH_CODE), None)
    place = ClusterPlace(
        kind="kubernetes", context=None, namespace="team", job="job", run="run", volume="v", image="mine/image:1"
    )
    with pytest.raises(UserError, match=r"place\.image=mine/image:1, model\.family=mine:build"):
        consent.require_image(run, place.image)
    consent.record_image(run, place.image)
    consent.require_image(run, place.image)
    consent.record(run, spec(*OVERRIDES_WITH_CODE))  # until its next job exists, the previous image counts
    consent.require_image(run, place.image)
    with pytest.raises(UserError, match=r"at .*: place\.image=evil/image"):
        consent.require_image(run, "evil/image")


@pytest.mark.parametrize("text", ["", "[]", "9" * 5000, '{"run": 1}', '{"code": ["x"]}'])
def test_a_damaged_record_is_no_consent(run: RunDir, state_folder: Path, text: str) -> None:
    before = set(state_folder.rglob("*.json"))
    consent.record(run, spec(*OVERRIDES_WITH_CODE))
    (file,) = set(state_folder.rglob("*.json")) - before
    file.write_text(text)
    with pytest.raises(UserError, match="names code"):
        consent.require(run, named(*OVERRIDES_WITH_CODE))


def test_a_run_is_launched_even_if_consent_cannot_be_recorded(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    consent.record(run, spec(*OVERRIDES_WITH_CODE))
    with pytest.raises(UserError, match="names code"):
        consent.require(run, named(*OVERRIDES_WITH_CODE))


def test_the_spec_of_a_run_is_not_a_run_file(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.touch()
    assert consent.run_of(file) is None
    (tmp_path / "ledger").mkdir()
    run = consent.run_of(file)
    assert run is not None
    assert run.path == tmp_path
    assert consent.run_of(tmp_path / "run.yaml") is None
