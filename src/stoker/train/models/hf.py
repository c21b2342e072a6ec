"""Folders in the form of transformers: config.json, and the weights in safetensors or .bin files, whole or in shards.

Tensors are read and written one file at a time, and what a folder holds must be the model that its config.json says.
"""

import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from stoker.spec.errors import UserError
from stoker.spec.run import Model
from stoker.train.models import model_spec

CONFIG_FILE = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # each may be in shards, with an index beside them
FORM = "gpt2"  # the one of our families that has a form in transformers
HEAD, EMBEDDING = "lm_head.weight", "wte.weight"  # one tensor under two names
SHOWN = 5  # names in an error
RESTORE = "Restore it as it was"

KEYS: dict[str, tuple[str, Any]] = {  # ours -> theirs, and what transformers takes where config.json is silent
    "layers": ("n_layer", 12),
    "heads": ("n_head", 12),
    "width": ("n_embd", 768),
    "context": ("n_positions", 1024),
    "vocab": ("vocab_size", 50257),
    "init_std": ("initializer_range", 0.02),
    "upcast_attention": ("reorder_and_upcast_attn", False),
    "scale_attention_by_layer": ("scale_attn_by_inverse_layer_idx", False),
}
DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
DROPOUT = 0.1
FIXED: dict[str, Any] = {  # what our model can be in one way only, which is transformers' default too
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
    "add_cross_attention": False,
    "quantization_config": None,
}


def read_shape(folder: Path) -> Model:
    """The model that config.json describes; what ours cannot be is refused by name."""
    file = folder / CONFIG_FILE
    config = _json(file)
    kind = config.get("model_type")
    if kind != FORM:
        raise UserError(f"{file}: model_type is {json.dumps(kind)}", remedy=f'Stoker reads "{FORM}"')
    for key, only in FIXED.items():
        if config.get(key, only) != only:
            raise UserError(
                f"{file}: {key} is {json.dumps(config[key])}, which Stoker's models cannot be",
                remedy=f"It takes {json.dumps(only)} alone",
            )
    values = {ours: config.get(theirs, default) for ours, (theirs, default) in KEYS.items()}
    if None in values.values():
        raise UserError(
            f"{file}: {next(KEYS[key][0] for key in values if values[key] is None)}: it is null", remedy=RESTORE
        )
    inner = config.get("n_inner")
    if inner is not None and inner != 4 * values["width"]:
        raise UserError(f"{file}: n_inner is {inner}", remedy="Stoker's feed-forward is four times n_embd wide")
    rates = [config.get(key, DROPOUT) for key in DROPOUTS]
    if len(set(rates)) > 1:
        said = ", ".join(f"{key} {rate}" for key, rate in zip(DROPOUTS, rates, strict=True))
        raise UserError(
            f"{file}: the dropouts differ ({said}), and Stoker's models have one",
            remedy="Make them equal in a copy of it; what the model computes does not depend on them",
        )
    try:
        return Model.model_validate({"family": FORM, "dropout": rates[0], **values})
    except ValidationError as e:
        first = e.errors()[0]
        ours = str(first["loc"][0]) if first["loc"] else ""
        key = KEYS.get(ours, (ours, None))[0]
        raise UserError(
            f"{file}: {f'{key}: ' * bool(key)}{first['msg'].removeprefix('Value error, ')}", remedy=RESTORE
        ) from e


def config(shape: Model, *, dtype: torch.dtype, end: int) -> dict[str, Any]:
    """What config.json says of a model; `end` is the token that ends a document."""
    if shape.family != FORM:
        raise UserError(
            f"model.family {shape.family} is code of your own, and has no form in transformers",
            remedy="Export a model of Stoker's families",
        )
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": FORM,
        **{theirs: getattr(shape, ours) for ours, (theirs, _) in KEYS.items()},
        **dict.fromkeys(DROPOUTS, shape.dropout),
        **{key: value for key, value in FIXED.items() if value is not None},
        "n_inner": None,
        "use_cache": True,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": str(dtype).removeprefix("torch."),
    }


@torch.no_grad()
def read_weights(folder: Path, shape: Model, model: nn.Module) -> None:
    """Fill the model; every tensor must be there, and no other."""
    wanted = dict(model.named_parameters())
    missing, unknown, misshapen = dict.fromkeys(wanted), [], []
    head = None
    for name, tensor in tensors(folder):
        if name == HEAD:
            head = tensor
        for ours, value in (renamed(shape, name, tensor) if tensor.dim() <= 2 else {name: tensor}).items():
            if ours not in wanted:
                unknown.append(name)
            elif value.shape != wanted[ours].shape or not value.is_floating_point():
                misshapen.append(f"{name} {str(value.dtype).removeprefix('torch.')} {list(tensor.shape)}")
            else:
                wanted[ours].copy_(value)
            missing.pop(ours, None)
    faults = [("lacks", list(missing)), ("has the unknown", unknown), ("has another shape of", misshapen)]
    said = "; ".join(f"{words} {_listed(names)}" for words, names in faults if names)
    if said:
        raise UserError(
            f"{folder} does not hold the model of its {CONFIG_FILE}: it {said}", remedy="Restore its files as they were"
        )
    if head is not None and not torch.equal(head.to(wanted[EMBEDDING]), wanted[EMBEDDING]):
        raise UserError(
            f"{folder}: {HEAD} differs from the embedding, and Stoker's models have one tensor for both",
            remedy="Train it with tie_word_embeddings",
        )


def renamed(shape: Model, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """One tensor of theirs as ours, or nothing when we have no need of it."""
    return model_spec(shape.family).from_hf({name: tensor})


def tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """What the folder's files hold, under transformers' names."""
    for file in _weight_files(folder):
        try:
            yield from _safetensors(file) if file.suffix == ".safetensors" else _pickled(file)
        except FileNotFoundError as e:
            raise UserError(f"{file} is missing, and the index names it", remedy="Restore it") from e
        except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as e:
            reason = (str(e).splitlines() or [type(e).__name__])[0]
            raise UserError(f"{file} cannot be read as tensors: {reason}", remedy=RESTORE) from e


@torch.no_grad()
def write_weights(folder: Path, shape: Model, model: nn.Module, *, dtype: torch.dtype, limit: int) -> None:
    """safetensors files of at most `limit` bytes of tensors each, a larger tensor alone in its own."""
    to_hf = model_spec(shape.family).to_hf
    parameters = dict(model.named_parameters())
    groups = _groups({name: p.numel() * dtype.itemsize for name, p in parameters.items()}, limit)
    placed: dict[str, str] = {}
    for number, names in enumerate(groups, 1):
        file = WEIGHTS[0] if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        found = {name: parameters[name].detach().to("cpu", dtype) for name in names}
        for name, tensor in found.items():
            if not tensor.isfinite().all():
                fits = parameters[name].isfinite().all()
                raise UserError(
                    f"{name} has values that {'do not fit ' if fits else 'are no numbers in '}{dtype}",
                    remedy="Export it with --dtype fp32" if fits else "Export an earlier step with --step",
                )
        theirs = to_hf(found)
        save_file(theirs, folder / file, metadata={"format": "pt"})
        placed |= dict.fromkeys(theirs, file)
    if len(groups) > 1:
        total = sum(p.numel() for p in parameters.values()) * dtype.itemsize
        index = {"metadata": {"total_size": total}, "weight_map": placed}
        (folder / _index(WEIGHTS[0])).write_text(json.dumps(index, indent=2) + "\n")


def _groups(sizes: dict[str, int], limit: int) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


def _weight_files(folder: Path) -> Sequence[Path]:
    for whole in WEIGHTS:
        if (folder / whole).is_file():
            return [folder / whole]
        index = folder / _index(whole)
        if index.is_file():
            placed = _json(index).get("weight_map")
            if not isinstance(placed, dict) or not all(isinstance(file, str) for file in placed.values()):
                raise UserError(f"{index} has no weight_map of files", remedy=RESTORE)
            files = sorted(set(placed.values()))
            for file in files:
                if Path(file).name != file:
                    raise UserError(f"{index} names {file}, which is no file beside it", remedy=RESTORE)
            return [folder / file for file in files]
    raise UserError(f"{folder} has no weights: no {' or '.join(WEIGHTS)}", remedy="Put one beside its config.json")


def _safetensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 (it is no mapping)
            yield name, opened.get_tensor(name)


def _pickled(file: Path) -> Iterator[tuple[str, Tensor]]:
    held = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(held, dict) or not all(isinstance(tensor, Tensor) for tensor in held.values()):
        raise ValueError("it holds something else than named tensors")
    yield from held.items()


def _index(whole: str) -> str:
    return f"{whole}.index.json"


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise UserError(f"{file} cannot be read: {e}", remedy=RESTORE) from e
    if not isinstance(found, dict):
        raise UserError(f"{file} is no JSON object", remedy=RESTORE)
    return found


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
