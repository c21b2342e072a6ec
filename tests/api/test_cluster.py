"""What is known of a run before it goes on in a cluster. What a real cluster does is in tests/lab."""

from dataclasses import replace
from pathlib import Path

from stoker.api.cluster import from_image, left_behind
from stoker.rundir import PlaceRef, RunDir
from stoker.spec.load import load

PLACE = PlaceRef(kind="kubernetes", context="lab", namespace="team", job="job", run="demo", volume="old", image="x")


def test_a_run_that_has_trained_is_told_what_it_leaves_on_another_volume(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    moved = replace(PLACE, volume="new")
    assert left_behind(run, moved) == []
    run.write_place(PLACE)
    assert left_behind(run, moved) == []
    run.write_seen({"asked": 0.0, "view": {"state": "failed", "step": 7}})
    assert left_behind(run, replace(PLACE, image="y")) == []
    [said] = left_behind(run, moved)
    assert "it came to step 7 on volume old" in said
    assert "on volume new of namespace team it begins at step 0" in said
    assert left_behind(run, replace(PLACE, namespace="other"))


def test_code_that_is_here_too_is_taken_from_the_image_and_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    on = ["on.kind=kubernetes", "on.image=team/torch"]
    script = load(None, [f"script={tmp_path}/train.py", *on]).spec
    assert from_image(script) == [
        f"script {tmp_path}/train.py must be in the image: without on.registry nothing brings your code there"
    ]
    assert from_image(load(None, ["script=/nowhere/train.py", *on]).spec) == []
    assert from_image(load(None, [f"script={tmp_path}/train.py", *on, "on.registry=team/runs"]).spec) == []
    own = load(None, ["data=x", "until.steps=1", "callbacks=[mine.watch:Watch]", *on]).spec
    assert "mine.watch:Watch must be in the image" in from_image(own)[0]
