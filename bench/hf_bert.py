"""The Hugging Face side of bench/bert.py: trains on records and writes the time of each step as a JSON line."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hf_trainer import StepTimes
from transformers import BertConfig, BertForPreTraining, Trainer, TrainingArguments

from stoker.data.bert.masking import fixed
from stoker.data.bert.pairs import PairSet, fields


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, pairs: PairSet) -> None:
        self.split, self.length = pairs.train, pairs.index.length

    def __len__(self) -> int:
        return self.split.records

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        row = fields(self.split.read(np.array([i]), self.length), self.length)
        masks, at = fixed(row), np.arange(self.length)
        real = at < row.real_N[0]
        arrays = {
            "input_ids": masks.tokens_NL[0],
            "attention_mask": real.astype(np.int64),
            "token_type_ids": (real & (at >= row.second_N[0])).astype(np.int64),
            "labels": masks.goals_NL[0],
            "next_sentence_label": row.label_N[0],
        }
        return {name: torch.as_tensor(array) for name, array in arrays.items()}


def main(settings: dict[str, Any]) -> None:
    pairs, shape = PairSet.open(Path(settings["records"])), settings["shape"]
    torch.manual_seed(0)
    model = BertForPreTraining(
        BertConfig(
            vocab_size=pairs.vocab,
            num_hidden_layers=shape["layers"],
            num_attention_heads=shape["heads"],
            hidden_size=shape["width"],
            intermediate_size=4 * shape["width"],
            max_position_embeddings=pairs.index.length,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    arguments = TrainingArguments(
        output_dir=settings["out"],
        per_device_train_batch_size=settings["sequences"],
        max_steps=100_000,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        torch_compile=True,
        bf16=settings["bf16"],
        use_cpu=True,
    )
    times = StepTimes(Path(settings["times"]))
    Trainer(model=model, args=arguments, train_dataset=Rows(pairs), callbacks=[times]).train()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
