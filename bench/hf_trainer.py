"""The Hugging Face side of bench/train.py: trains on a token set and writes the time of each step as a JSON line."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from stoker.data.shards import TokenSet


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, tokens: TokenSet, length: int) -> None:
        self.split, self.length = tokens.train, length

    def __len__(self) -> int:
        return self.split.samples(self.length)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        row = torch.from_numpy(self.split.read(np.array([i]), self.length)[0, :-1])
        return {"input_ids": row, "labels": row}


class StepTimes(TrainerCallback):
    def __init__(self, path: Path) -> None:
        self.file = open(path, "w", buffering=1)  # noqa: SIM115 (open as long as the process lives)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self.file.write(json.dumps({"step": state.global_step, "time": time.time()}) + "\n")


def main(settings: dict[str, Any]) -> None:
    tokens = TokenSet.open(Path(settings["tokens"]))
    shape = settings["shape"]
    torch.manual_seed(0)
    model = _model(shape, shape.get("vocab", tokens.vocab), settings["length"])
    arguments = TrainingArguments(
        output_dir=settings["out"],
        per_device_train_batch_size=settings["sequences"],
        max_steps=100_000,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **settings["arguments"],
    )
    times = StepTimes(Path(settings["times"]))
    Trainer(model=model, args=arguments, train_dataset=Rows(tokens, settings["length"]), callbacks=[times]).train()


def _model(shape: dict[str, Any], vocab: int, length: int) -> PreTrainedModel:
    if shape.get("family") == "llama":
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocab,
                num_hidden_layers=shape["layers"],
                num_attention_heads=shape["heads"],
                num_key_value_heads=shape["kv_heads"],
                hidden_size=shape["width"],
                intermediate_size=shape["hidden"],
                max_position_embeddings=length,
            )
        )
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab,
            n_layer=shape["layers"],
            n_head=shape["heads"],
            n_embd=shape["width"],
            n_positions=length,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
