"""The model card: README.md of an exported folder. Only numbers: no paths, no text, no environment."""

import torch

from stoker import __version__
from stoker.data.location import token_folder
from stoker.data.sets import open_set
from stoker.data.shards import UnreadableSet
from stoker.models.load import LoadedModel
from stoker.rundir import RunDir
from stoker.spec import estimate

Rows = list[tuple[str, str]]

CARD = """\
---
library_name: transformers
pipeline_tag: {task}
tags:
- {family}
- stoker
---

# {name}

A {family} language model of {parameters:,} parameters, made with Stoker {version}.

| | |
| --- | --- |
{table}

## Use it

```python
{use}
```

`stoker.json` records how this folder was checked, and has the sha256 of each of its files.
"""

WRITE = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")  # or this folder
tokenizer = AutoTokenizer.from_pretrained("{name}")
inputs = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50, do_sample=True)[0]))"""
FILL = """\
from transformers import pipeline

print(pipeline("fill-mask", "{name}")("Once upon a [MASK]."))  # or this folder"""


def card(loaded: LoadedModel, *, name: str, dtype: torch.dtype) -> str:
    shape = loaded.shape
    assert shape.vocab is not None
    rows = [
        ("layers, heads, width", f"{shape.layers}, {shape.heads}, {shape.width}"),
        ("context", f"{shape.context:,} tokens"),
        ("vocabulary", f"{shape.vocab:,} tokens"),
        ("weights", str(dtype).removeprefix("torch.")),
    ]
    if loaded.run and loaded.step:
        rows += _training(loaded.run, loaded.step) + _data(loaded.run)
    return CARD.format(
        family=shape.family,
        name=name,
        parameters=estimate.parameters(shape, shape.vocab),
        version=__version__,
        task="fill-mask" if shape.masked else "text-generation",
        use=(FILL if shape.masked else WRITE).format(name=name),
        table="\n".join(f"| {key} | {value} |" for key, value in rows),
    )


def _training(run: RunDir, step: int) -> Rows:
    spec = run.spec()
    records = [record for record in run.metrics() if record["step"] <= step]
    rows = [
        ("steps", f"{step:,}, each of {spec.batch.sequences} × {spec.batch.length} tokens"),
        ("learning rate", f"{spec.optim.lr:g}, {spec.optim.schedule}"),
    ]
    for key, title in (("tokens", "tokens trained on"), ("loss", "training loss"), ("val_loss", "held-out loss")):
        values = [record[key] for record in records if record.get(key) is not None]
        if values:
            rows.append((title, f"{values[-1]:,}" if key == "tokens" else f"{values[-1]:.4f}"))
    return rows


def _data(run: RunDir) -> Rows:
    """About the training text, if its token set still exists."""
    try:
        index = open_set(token_folder(run)).index
    except UnreadableSet:
        return []
    tokens = sum(shard.tokens for shard in index.train)
    return [("training text", f"{index.documents:,} documents, {index.bytes:,} bytes, {tokens:,} tokens")]
