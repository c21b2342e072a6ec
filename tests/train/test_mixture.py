"""A run on a mixture has exact shares, is audited and replayed by source, and is another run with other weights."""

import json
from pathlib import Path

import pytest

from stoker.observe.audit import audit
from stoker.spec.errors import UserError
from tests.inside import inside

OVERRIDES = [
    "model.layers=2", "model.heads=2", "model.width=32", "model.context=16", "compile=false",
    "batch.sequences=64", "batch.length=16", "until.steps=70", "optim.horizon=70", "precision=fp32",
    "checkpoint.every=10", "log.every=1", "eval.every=20", "optim.warmup=2", "optim.lr=1e-3",
    "data.tokenizer={train: 300}", "data.validation=5%",
]  # fmt: skip


@pytest.fixture
def overrides(tmp_path: Path) -> list[str]:
    a, b = tmp_path / "a.txt", tmp_path / "b.jsonl"
    a.write_text("alpha beta gamma delta\n" * 900)
    b.write_text("".join(json.dumps({"body": f"number {i} of b"}) + "\n" for i in range(300)))
    parts = f"[{{path: {a}, weight: 3}}, {{path: {b}, weight: 1, field: body}}]"
    return [*OVERRIDES, "data.path=null", f"data.mix={parts}"]


def test_every_source_has_its_share_and_audit_confirms_it(worker, overrides: list[str]) -> None:
    run = worker("name=run", *overrides, "until.steps=30")
    worker("name=run", *overrides)
    assert "0.75 of" in inside("train", "name=run", *overrides, "--dry-run", "--runs", str(run.path.parent)).stdout
    report = audit(run)
    assert report.ok, report
    assert report.steps == 70
    a, b = report.sources
    assert (a.expected, b.expected) == (3072, 1024)
    assert a.samples + b.samples == 70 * 64
    assert 3072 <= a.samples <= 3072 + 70 * 64 - 4096
    assert b.epochs > 1, "the small source is repeated"
    table = inside("audit", str(run.path)).stdout
    assert "b.jsonl: " in table
    assert "weight of 0.25" in table

    shown = json.loads(inside("replay", str(run.path), "--step", "69", "--json").stdout)
    assert shown["in_order"]
    assert shown["in_shards"]
    assert shown["replayed"]["equal"]
    for sample in shown["samples"]:
        assert {document["file"] for document in sample["documents"]} == {sample["source"]}
    assert {Path(sample["source"]).name for sample in shown["samples"]} == {"a.txt", "b.jsonl"}
    assert "SOURCE" in inside("replay", str(run.path), "--step", "69", "--no-loss").stdout
    assert "perplexity" in inside("eval", str(run.path)).stdout


def test_other_weights_make_another_run(worker, overrides: list[str]) -> None:
    worker("name=run", *overrides, "until.steps=2")
    worker("name=run", *overrides, "until.steps=3")
    other = overrides[-1].replace("weight: 3", "weight: 2")
    with pytest.raises(UserError, match=r"started with another spec \(data\.mix: .*--new"):
        worker("name=run", *overrides[:-1], other, "until.steps=3")
