"""Overrides for `stoker launch` that a remedy names. Pure."""

import json
import shlex
from typing import Any

import yaml

from stoker.spec.run import AnySpec, ScriptSpec


def override(key: str, value: object) -> str:
    """`key=value`, quoted for a shell."""
    dumped = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False)
    text = dumped.strip().removesuffix("\n...")  # the end of a document, which follows a plain scalar
    if "'" in text:
        text = json.dumps(value, ensure_ascii=False)  # double quotes, which a shell keeps inside single ones
    return shlex.quote(f"{key}={text}")


def smaller(spec: AnySpec) -> dict[str, Any]:
    """Overrides that save memory and disk, under the names of RunFact's fields; a script has settings of its own."""
    if isinstance(spec, ScriptSpec):
        return {}
    return {
        "micro_one": "" if spec.batch.micro == 1 else "batch.micro=1",
        "keep_one": "" if spec.checkpoint.keep == 1 else "checkpoint.keep=1",
    }
