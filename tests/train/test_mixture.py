"""A run on a mixture: exact shares, proven, replayed by source, and another run when the weights are others."""

import json
from pathlib import Path

import pytest

WORDS = [
    "model.layers=2", "model.heads=2", "model.width=32", "model.context=16", "compile=false",
    "batch.sequences=64", "batch.length=16", "until.steps=70", "optim.horizon=70", "precision=fp32",
    "checkpoint.every=10", "log.every=1", "eval.every=20", "optim.warmup=2", "data.tokenizer={train: 300}",
]  # fmt: skip


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "a.txt").write_text("alpha beta gamma delta\n" * 900)
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"body": f"number {i} of b"}) + "\n" for i in range(300)))
    return [*WORDS, "data={mix: [{path: a.txt, weight: 3}, {path: b.jsonl, weight: 1, field: body}], validation: 5%}"]


def test_every_part_has_its_share_and_audit_says_so(stoker, words: list[str]) -> None:
    for steps, workers in ((30, 1), (70, 2)):
        shown = stoker("train", "name=run", *words, f"until.steps={steps}", f"on.workers={workers}").stdout
        assert "0.75 of" in shown
    report = json.loads(stoker("audit", "run", "--json").stdout)
    assert report["ok"], report
    assert report["steps"] == 70
    a, b = report["sources"]
    assert (a["expected"], b["expected"]) == (3072, 1024)
    assert a["samples"] + b["samples"] == 70 * 64
    assert 3072 <= a["samples"] <= 3072 + 70 * 64 - 4096
    assert b["epochs"] > 1, "the small one is gone through several times"
    table = stoker("audit", "run").stdout
    assert "b.jsonl: " in table
    assert "weight of 0.25" in table

    shown = json.loads(stoker("replay", "run", "--step", "69", "--json").stdout)
    assert shown["in_order"]
    assert shown["in_shards"]
    assert shown["replayed"]["equal"]
    for sample in shown["samples"]:
        assert {document["file"] for document in sample["documents"]} == {sample["source"]}
    assert {Path(sample["source"]).name for sample in shown["samples"]} == {"a.txt", "b.jsonl"}
    assert "SOURCE" in stoker("replay", "run", "--step", "69", "--no-loss").stdout


def test_other_weights_are_another_run_and_epochs_are_refused(stoker, words: list[str]) -> None:
    stoker("train", "name=run", *words, "until.steps=2", "on.workers=1")
    other = words[-1].replace("weight: 3", "weight: 2")
    refused = stoker("train", "name=run", *words[:-1], other, "until.steps=2", "on.workers=1", code=2)
    assert "data.mix" in refused.stderr
    assert "--new" in refused.stderr
    refused = stoker("train", "name=other", *words, "until={epochs: 1}", code=2)
    assert "until.epochs is not for a mixture" in refused.stderr
    assert "until.tokens" in refused.stderr
    explained = stoker("explain", "data.mix", *words).stdout
    assert "b.jsonl" in explained
    assert "eval" not in stoker("eval", "run").stderr
