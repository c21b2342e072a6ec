"""transformers' config.json of our model families, read and written. No torch."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stoker.spec import bounded
from stoker.spec.errors import UserError
from stoker.spec.files import open_regular
from stoker.spec.model import Model, default_inner

Values = dict[str, Any]

CONFIG_FILE = "config.json"
RESTORE = "Restore the original file"
MAX_SHOWN = 80  # characters of a value in a message
EDGE_BYTES = 1 << 20  # at both ends of a weight file, hashed to identify it


@dataclass(frozen=True, kw_only=True, slots=True)
class HfFormat:
    """How config.json describes the models of a family."""

    model_type: str
    architecture: str
    """The class that config.json names."""
    auto: str
    """The Auto class of transformers that loads it."""
    keys: Mapping[str, tuple[str, Any]]
    """Our field -> key in config.json, and the default of transformers."""
    dropouts: tuple[str, ...] = ()
    """Keys in config.json for our single dropout."""
    dropout: float = 0.0
    """The default of transformers."""
    names_end_token: bool = True
    """config.json names the token that ends a document."""
    fixed: Mapping[str, Any]
    """Keys for which our models support one value only, which is also the default of transformers."""
    extra: Callable[[Model], Values] = lambda _: {}
    """Keys that do not correspond to a single field of `Model`."""
    read_extra: Callable[[Values, Path], Values] = lambda _config, _file: {}
    """Our fields from such keys; refuses what our models do not support."""


def _gpt2_inner(config: Values, _file: Path) -> Values:
    return _plain_inner(config.get("n_inner"), config.get("n_embd", 768))


def _plain_inner(inner: Any, width: Any) -> Values:
    return {"hidden": None if isinstance(width, int) and inner == 4 * width else inner}


ROPE_SCALING = {
    "factor": "factor",
    "low": "low_freq_factor",
    "high": "high_freq_factor",
    "original_context": "original_max_position_embeddings",
}


def _llama_extra(shape: Model) -> Values:
    rope: Values = {"rope_type": "default", "rope_theta": shape.rope_theta}
    if scaling := shape.rope_scaling:
        rope |= {"rope_type": "llama3"} | {key: getattr(scaling, field) for field, key in ROPE_SCALING.items()}
    return {
        "intermediate_size": shape.inner,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.width // shape.heads,
        "rope_parameters": rope,
        "use_cache": True,
    }


def _llama_fields(config: Values, file: Path) -> Values:
    width, heads = config.get("hidden_size", 4096), config.get("num_attention_heads", 32)
    inner, kv_heads = config.get("intermediate_size", 11008), config.get("num_key_value_heads")
    are_sizes = isinstance(width, int) and isinstance(heads, int) and heads > 0
    if are_sizes and width % heads == 0 and config.get("head_dim") not in (None, width // heads):
        raise UserError(
            f"{file}: head_dim is {_shown(config['head_dim'])}, which Stoker's models do not support",
            remedy=f"Only hidden_size / num_attention_heads is supported: {width // heads}",
        )
    is_default = are_sizes and inner == default_inner("llama", width)
    return {
        "hidden": None if is_default else inner,
        "kv_heads": None if kv_heads == heads else kv_heads,
        **_llama_rope(config, file),
    }


def _llama_rope(config: Values, file: Path) -> Values:
    """From `rope_parameters`, as transformers 5 writes them, or from the two older keys."""
    parameters, scaling = (config.get(key) or {} for key in ("rope_parameters", "rope_scaling"))
    if not isinstance(parameters, dict) or not isinstance(scaling, dict):
        key = "rope_scaling" if isinstance(parameters, dict) else "rope_parameters"
        raise UserError(f"{file}: {key} is {_shown(config[key])}, not an object of numbers", remedy=RESTORE)
    scaling = parameters or scaling
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise UserError(
            f"{file}: rope_type is {_shown(kind)}, which Stoker's models do not support",
            remedy='Supported are "default" and "llama3"',
        )
    part = scaling.get("partial_rotary_factor", 1.0)
    if part != 1.0:
        raise UserError(
            f"{file}: partial_rotary_factor is {_shown(part)}, which Stoker's models do not support",
            remedy="Only 1.0 is supported",
        )
    theta = parameters.get("rope_theta", config.get("rope_theta", 10_000.0))
    if kind == "default":
        return {"rope_theta": theta}
    values = {field: scaling.get(key) for field, key in ROPE_SCALING.items()}
    if values["original_context"] is None:
        values["original_context"] = config.get("max_position_embeddings", 2048)
    return {"rope_theta": theta, "rope_scaling": values}


def _bert_inner(config: Values, _file: Path) -> Values:
    return _plain_inner(config.get("intermediate_size", 3072), config.get("hidden_size", 768))


HF_FORMATS = {
    "gpt2": HfFormat(
        model_type="gpt2",
        architecture="GPT2LMHeadModel",
        auto="AutoModelForCausalLM",
        keys={
            "layers": ("n_layer", 12),
            "heads": ("n_head", 12),
            "width": ("n_embd", 768),
            "context": ("n_positions", 1024),
            "vocab": ("vocab_size", 50257),
            "init_std": ("initializer_range", 0.02),
            "upcast_attention": ("reorder_and_upcast_attn", False),
            "scale_attention_by_layer": ("scale_attn_by_inverse_layer_idx", False),
        },
        dropouts=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
        dropout=0.1,
        fixed={
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "scale_attn_weights": True,
            "tie_word_embeddings": True,
            "add_cross_attention": False,
            "quantization_config": None,
        },
        extra=lambda shape: {"n_inner": shape.hidden, "use_cache": True},
        read_extra=_gpt2_inner,
    ),
    "llama": HfFormat(
        model_type="llama",
        architecture="LlamaForCausalLM",
        auto="AutoModelForCausalLM",
        keys={
            "layers": ("num_hidden_layers", 32),
            "heads": ("num_attention_heads", 32),
            "width": ("hidden_size", 4096),
            "context": ("max_position_embeddings", 2048),
            "vocab": ("vocab_size", 32000),
            "init_std": ("initializer_range", 0.02),
            "tied": ("tie_word_embeddings", False),
            "norm_eps": ("rms_norm_eps", 1e-6),
        },
        fixed={
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "quantization_config": None,
        },
        extra=_llama_extra,
        read_extra=_llama_fields,
    ),
    "bert": HfFormat(
        model_type="bert",
        architecture="BertForPreTraining",
        auto="AutoModelForPreTraining",
        keys={
            "layers": ("num_hidden_layers", 12),
            "heads": ("num_attention_heads", 12),
            "width": ("hidden_size", 768),
            "context": ("max_position_embeddings", 512),
            "vocab": ("vocab_size", 30522),
            "init_std": ("initializer_range", 0.02),
        },
        dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob"),
        dropout=0.1,
        names_end_token=False,
        fixed={
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-12,
            "type_vocab_size": 2,
            "position_embedding_type": "absolute",
            "tie_word_embeddings": True,
            "is_decoder": False,
            "add_cross_attention": False,
            "quantization_config": None,
        },
        extra=lambda shape: {"intermediate_size": shape.inner},
        read_extra=_bert_inner,
    ),
}


def hf_format(shape: Model) -> HfFormat:
    if shape.family not in HF_FORMATS:
        raise UserError(
            f"model.family {shape.family} is your own code, and transformers has no such model",
            remedy="Export a model of one of Stoker's families",
        )
    return HF_FORMATS[shape.family]


def config(shape: Model, *, dtype: str, end: int, begin: int | None = None) -> Values:
    """The config.json of a model; `end` is the token that ends a document, `begin` the one that starts it."""
    form = hf_format(shape)
    return {
        "architectures": [form.architecture],
        "model_type": form.model_type,
        **{key: getattr(shape, field) for field, (key, _) in form.keys.items()},
        **dict.fromkeys(form.dropouts, shape.dropout),
        **{key: value for key, value in form.fixed.items() if value is not None},
        **form.extra(shape),
        **({"bos_token_id": end if begin is None else begin, "eos_token_id": end} if form.names_end_token else {}),
        "dtype": dtype,
    }


def read_shape(folder: Path) -> Model:
    """The model that config.json describes; keys that our models do not support are refused by name."""
    file = folder / CONFIG_FILE
    config = read_json(file)
    kind = config.get("model_type")
    family = next((family for family, form in HF_FORMATS.items() if form.model_type == kind), None)
    if family is None:
        known = ", ".join(f'"{form.model_type}"' for form in HF_FORMATS.values())
        raise UserError(f"{file}: model_type is {_shown(kind)}", remedy=f"Supported are {known}")
    form = HF_FORMATS[family]
    for key, only in form.fixed.items():
        if config.get(key, only) != only:
            raise UserError(
                f"{file}: {key} is {_shown(config[key])}, which Stoker's models do not support",
                remedy=f"Only {json.dumps(only)} is supported",
            )
    values = {field: config.get(key, default) for field, (key, default) in form.keys.items()}
    if None in values.values():
        raise UserError(
            f"{file}: {next(form.keys[key][0] for key in values if values[key] is None)}: it is null", remedy=RESTORE
        )
    values |= form.read_extra(config, file)
    return _validated({"family": family, "dropout": _dropout(form, config, file), **values}, form, file)


def identity(folder: Path) -> str:
    """Identifies a folder of weights: a hash of its config, and of the names, sizes and both ends of its files."""
    digest = hashlib.sha256((folder / CONFIG_FILE).read_bytes())
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with open_regular(file) as opened:
            digest.update(opened.read(EDGE_BYTES))
            opened.seek(max(0, size - EDGE_BYTES))
            digest.update(opened.read(EDGE_BYTES))
    return digest.hexdigest()


def _dropout(form: HfFormat, config: Values, file: Path) -> float:
    rates = [config.get(key, form.dropout) for key in form.dropouts] or [0.0]
    if any(rate != rates[0] for rate in rates):
        listed = ", ".join(f"{key} {_shown(rate)}" for key, rate in zip(form.dropouts, rates, strict=True))
        raise UserError(
            f"{file}: the dropouts differ ({listed}), and Stoker's models have one for all",
            remedy="Make them equal in a copy of it; they only matter for training",
        )
    rate: float = rates[0]
    return rate


def _validated(values: Values, form: HfFormat, file: Path) -> Model:
    try:
        return Model.model_validate(values)
    except ValidationError as e:
        first = e.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        key = form.keys.get(field, (field, None))[0]
        raise UserError(
            f"{file}: {f'{key}: ' * bool(key)}{first['msg'].removeprefix('Value error, ')}", remedy=RESTORE
        ) from e


def _shown(value: Any) -> str:
    """Shortened, for a message."""
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def read_json(file: Path) -> Values:
    try:
        values = bounded.read_json(file)
    except (OSError, ValueError) as e:
        raise UserError(f"{file} cannot be read: {e}", remedy=RESTORE) from e
    if not isinstance(values, dict):
        raise UserError(f"{file} is not a JSON object", remedy=RESTORE)
    return values
