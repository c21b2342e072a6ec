"""A model as a folder that transformers loads, with a record of how it was checked.

    config.json  generation_config.json  model.safetensors (or shards and their index)  README.md  stoker.json
    tokenizer.json  tokenizer_config.json  special_tokens_map.json

What is written is read back and must be the model's weights bit for bit, rounded to the dtype asked for. Then a process
of its own asks transformers (see parity.py). stoker.json keeps the verdict: `proven`, `failed`, or `unproven` when
transformers could not be asked.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stoker import __version__
from stoker.data import tokenizer as tokenizer_files
from stoker.rundir import Record, write_json
from stoker.spec import contract, forms
from stoker.spec.errors import RunFailed, UserError
from stoker.train.card import card
from stoker.train.choices import DTYPES, Precision
from stoker.train.folders import whole_folder
from stoker.train.load import LoadedModel
from stoker.train.models import hf
from stoker.train.parity import RECORD_FILE, facts, prove

SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    folder: Path
    record: Record
    """What stoker.json says."""

    @property
    def verdict(self) -> str:
        return str(self.record["verdict"])


def default_folder(loaded: LoadedModel) -> Path:
    if loaded.run is None or loaded.step is None:
        raise UserError(f"{loaded.origin} is no checkpoint of a run", remedy="Say where to export it to with -o DIR")
    return loaded.run.path / contract.EXPORT_DIR / f"step-{loaded.step}"


def export(
    loaded: LoadedModel,
    folder: Path,
    *,
    dtype: Precision = "fp32",
    shard_bytes: int = SHARD_BYTES,
    require_proof: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Write the folder; it is there whole or not at all. With `require_proof`, only when it is proven."""
    name = loaded.run.name if loaded.run else folder.name
    with whole_folder(folder) as partial:
        say(f"writing {loaded.origin} as {dtype}")
        _write(loaded, partial, name=name, dtype=DTYPES[dtype], shard_bytes=shard_bytes)
        tensors = _read_back(loaded, partial, DTYPES[dtype])
        say("checking it against transformers")
        record = _origin(loaded) | {"dtype": dtype, "tensors": tensors} | prove(partial)
        record["files"] = {file.name: facts(file) for file in sorted(partial.iterdir())}
        write_json(partial / RECORD_FILE, record)
        if require_proof:
            _require(record)
    return Exported(folder=folder, record=record)


def _write(loaded: LoadedModel, folder: Path, *, name: str, dtype: torch.dtype, shard_bytes: int) -> None:
    tokenizer = loaded.read_tokenizer()
    end, special = tokenizer.end_id, tokenizer_files.special_tokens(tokenizer)
    begin = end if tokenizer.begin_id is None else tokenizer.begin_id
    if forms.form_of(loaded.shape).ends:
        special |= {"bos_token": tokenizer.begin or tokenizer.end}
        write_json(folder / "generation_config.json", {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": end})
    precision = str(dtype).removeprefix("torch.")
    write_json(folder / forms.CONFIG_FILE, forms.config(loaded.shape, dtype=precision, end=end, begin=begin))
    tokenizer_files.save(tokenizer, folder)
    config_file = folder / tokenizer_files.CONFIGS[0]
    config = json.loads(config_file.read_text()) | special | {"model_max_length": loaded.shape.context}
    write_json(config_file, config)
    write_json(folder / "special_tokens_map.json", special)
    (folder / "README.md").write_text(card(loaded, name=name, dtype=dtype), encoding="utf-8")
    hf.write_weights(folder, loaded.shape, loaded.model, dtype=dtype, limit=shard_bytes)


def _read_back(loaded: LoadedModel, folder: Path, dtype: torch.dtype) -> int:
    """How many tensors there are; each must hold the bits that the model's has in that dtype."""
    wanted = dict(loaded.model.named_parameters())
    for name, tensor in hf.tensors(folder):
        for ours, value in hf.renamed(loaded.shape, name, tensor).items():
            if not _same_bits(value, wanted.pop(ours).detach().to("cpu", dtype)):
                raise RunFailed(f"{name} was not written as it is", remedy=f"Check the disk of {folder.parent}")
    assert not wanted, f"{list(wanted)} were not written"
    return len(dict(loaded.model.named_parameters()))


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    as_bits = {4: torch.int32, 2: torch.int16}[one.element_size()]
    return torch.equal(one.contiguous().view(as_bits), other.contiguous().view(as_bits))


def _origin(loaded: LoadedModel) -> Record:
    run = loaded.run.name if loaded.run else None
    return {"stoker": __version__, "run": run, "step": loaded.step, "shape": loaded.shape.model_dump(mode="json")}


def _require(record: Record) -> None:
    reasons = "; ".join(record["problems"])
    if record["verdict"] == "failed":
        raise RunFailed(
            f"transformers disproves the export, and it was removed: {reasons}",
            remedy="Without --require-proof it is kept for you to look into",
        )
    if record["verdict"] == "unproven":
        raise UserError(
            f"the export cannot be proven, and was removed: {reasons}",
            remedy="Run: pip install 'stoker[hf]', or leave --require-proof out",
        )
