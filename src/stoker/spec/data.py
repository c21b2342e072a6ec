"""`data`: where the text is, and how it is tokenized."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from stoker.spec.code import is_code
from stoker.spec.section import Fraction, Place, PositiveCount, Section
from stoker.spec.units import Count, Number, Text

BLOCK = 4096  # samples of a mixture in which every source has its exact share


class TrainTokenizer(Section):
    train: Annotated[Count, Field(ge=257, le=1 << 20)]
    """Train a tokenizer of this many tokens on the data: byte-level BPE, or WordPiece for bert."""


class MixturePart(Section):
    path: Place | Annotated[list[Place], Field(min_length=1)]
    """Where its text is, as in `data.path`."""
    weight: Annotated[Number, Field(gt=0)]
    """Its share of the samples, relative to the sum of all weights."""
    field: Text | None = None
    """The field with its text. Default: `data.field`."""

    @property
    def paths(self) -> list[str]:
        return [self.path] if isinstance(self.path, str) else self.path


class Data(Section):
    path: Place | Annotated[list[Place], Field(min_length=1)] | None = None
    """Files, folders or globs of text, JSONL, JSON, CSV or Parquet (.gz, .zst too), on this machine or at hf://datasets/OWNER/NAME, s3://, gs:// or https://; a folder of `stoker prepare`; HDF5 files of sentence pairs (for bert); or `package.module:source`, your own function that yields texts."""  # noqa: E501
    mix: Annotated[list[MixturePart], Field(min_length=2)] | None = None
    """Instead of `path`, several paths with weights: `[{path: a, weight: 0.7}, {path: b, weight: 0.3}]`."""
    tokenizer: Place | TrainTokenizer | None = None
    """`{train: 8000}`, a folder with tokenizer.json, tokenizer.model, vocab.json + merges.txt or vocab.txt, or a Hugging Face name such as `gpt2`. Default: `{train: 8000}`, or the tokenizer of a prepared folder."""  # noqa: E501
    field: Text = "text"
    """The field with the text, in JSONL, JSON, CSV and Parquet."""
    validation: Fraction = 0.01
    """Share of the tokens held out for evaluation: the end of each part of the data."""
    skip_bad: bool = False
    """Skip and count records that cannot be read, instead of stopping at the first."""
    stream: bool = False
    """Start training as soon as the first window is prepared; the rest is prepared in the background."""
    window: PositiveCount = 64_000_000
    """With `stream`: how many tokens are shuffled together. The first window has the held-out text."""
    ahead: PositiveCount = 4
    """With `stream`: how many windows are prepared ahead of the training."""

    @property
    def paths(self) -> list[str]:
        """Every path that text is read from."""
        if self.mix:
            return [path for part in self.mix for path in part.paths]
        return [self.path] if isinstance(self.path, str) else self.path or []

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.path is None) == (self.mix is None):
            problem = "it has both path and mix" if self.mix else "it has no path"
            raise ValueError(f"{problem}; write data: ./books, or data: {{mix: [{{path: ./books, weight: 0.7}}, …]}}")
        if self.mix and self.stream:
            raise ValueError("a mixture cannot be streamed; remove stream or mix")
        if self.stream and any(map(is_code, self.paths)):
            raise ValueError("the texts of a function cannot be streamed; remove stream")
        total = sum(part.weight for part in self.mix or ())
        for part in self.mix or ():
            if part.weight * BLOCK < total:
                raise ValueError(
                    f"the weight {part.weight:g} of {', '.join(part.paths)} is less than one sample in {BLOCK}; "
                    f"set it to {total / BLOCK:.3g} or more, or remove that part"
                )
        return self
