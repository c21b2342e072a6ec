"""RunSpec: what a run is, section by section. The doc under a field is its help, its schema text and its reference."""

from collections.abc import Collection
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, model_validator

from stoker.spec.code import CODE, is_code
from stoker.spec.units import Count, Number, Seconds, Share, Text, count, duration, number, share

PositiveCount = Annotated[Count, Field(gt=0)]
Fraction = Annotated[Share, Field(ge=0, lt=1)]
Place = Annotated[Text, Field(min_length=1)]
BLOCK = 4096  # samples of a mixture in which every part has its exact share
ScheduleStage = tuple[PositiveCount, PositiveCount]
Name = Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Code = Annotated[Text, Field(pattern=CODE)]
Variables = Annotated[dict[str, Text], AfterValidator(lambda v: _settable(v))]
Secrets = Annotated[dict[str, Text], AfterValidator(lambda v: _secret_sources(v))]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Model(Section):
    family: Literal["gpt2"] | Code = "gpt2"
    """The architecture: one of ours, or `package.module:build`, a function of your own from these sizes to a module."""
    layers: PositiveCount = 12
    """Transformer blocks."""
    heads: PositiveCount = 12
    """Attention heads; they divide `width`."""
    width: PositiveCount = 768
    """Size of the hidden state."""
    hidden: PositiveCount | None = None
    """Width of the feed-forward's inner layer. Left out: 4 × `width`."""
    context: PositiveCount = 1024
    """Positions the model knows: the longest sequence it can read."""
    vocab: PositiveCount | None = None
    """Rows of the embedding. Left out, it is the tokenizer's size."""
    dropout: Fraction = 0.0
    """Dropout on embeddings, attention and residuals while training."""
    init_std: Annotated[Number, Field(gt=0)] = 0.02
    """Standard deviation of the initial weights."""
    upcast_attention: bool = False
    """Compute attention scores in fp32 whatever the precision: steadier in fp16."""
    scale_attention_by_layer: bool = False
    """Divide the attention scores of block k by k (counted from 1): steadier in fp16."""

    @property
    def inner(self) -> int:
        """Width of the feed-forward's inner layer."""
        return self.hidden or 4 * self.width

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads and not is_code(self.family):
            near = max(1, round(self.width / self.heads)) * self.heads
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}; set width to {near}")
        return self


class TrainTokenizer(Section):
    train: Annotated[Count, Field(ge=257)]
    """Train a byte-level BPE tokenizer of this many tokens on the data."""


class Part(Section):
    path: Place | Annotated[list[Place], Field(min_length=1)]
    """Where its text is: as `data.path`."""
    weight: Annotated[Number, Field(gt=0)]
    """Its share of the samples, over the sum of all weights."""
    field: Text | None = None
    """The field that holds its text. Left out: `data.field`."""

    @property
    def paths(self) -> list[str]:
        return [self.path] if isinstance(self.path, str) else self.path


class Data(Section):
    path: Place | Annotated[list[Place], Field(min_length=1)] | None = None
    """Files, folders or globs of text, JSONL, JSON, CSV or Parquet (.gz, .zst too), here or at hf://datasets/OWNER/NAME, s3://, gs:// or https://, a folder of `stoker prepare`, or `package.module:source`, a function of your own that yields texts."""  # noqa: E501
    mix: Annotated[list[Part], Field(min_length=2)] | None = None
    """In place of `path`, several of them with weights: `[{path: a, weight: 0.7}, {path: b, weight: 0.3}]`."""
    tokenizer: Text | TrainTokenizer | None = None
    """`{train: 8000}`, a folder with tokenizer.json or vocab.json + merges.txt, or a hub name such as `gpt2`. Left out: `{train: 8000}`, or the tokenizer of a prepared folder."""  # noqa: E501
    field: Text = "text"
    """The field that holds the text, in JSONL, JSON, CSV and Parquet."""
    validation: Fraction = 0.01
    """Share of the tokens held out for evaluation: the end of each piece of the data."""
    skip_bad: bool = False
    """Leave out and count records that cannot be read, instead of stopping at the first."""
    stream: bool = False
    """Begin to train as soon as the first window is prepared; the rest is prepared meanwhile."""
    window: PositiveCount = 64_000_000
    """Of a stream: the tokens that are shuffled together. The first window has the held-out text."""
    ahead: PositiveCount = 4
    """Of a stream: windows that are prepared ahead of the training."""

    @property
    def paths(self) -> list[str]:
        """Every place that text is read from."""
        if self.mix:
            return [path for part in self.mix for path in part.paths]
        return [self.path] if isinstance(self.path, str) else self.path or []

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.path is None) == (self.mix is None):
            what = "it has both path and mix" if self.mix else "it names no text"
            raise ValueError(f"{what}; write data: ./books, or data: {{mix: [{{path: ./books, weight: 0.7}}, …]}}")
        if self.mix and self.stream:
            raise ValueError("a mixture is no stream; leave stream or mix out")
        if self.stream and any(map(is_code, self.paths)):
            raise ValueError("a function's texts are all written down first; leave stream out")
        total = sum(part.weight for part in self.mix or ())
        for part in self.mix or ():
            if part.weight * BLOCK < total:
                raise ValueError(
                    f"the weight {part.weight:g} of {', '.join(part.paths)} is less than one sample in {BLOCK}; "
                    f"set it to {total / BLOCK:.3g} or more, or leave it out"
                )
        return self


class Objective(Section):
    kind: Literal["causal"] = "causal"
    """`causal`: predict the next token."""


class Batch(Section):
    sequences: PositiveCount = 32
    """Sequences in one optimizer step, over all workers. Stays the same at any number of workers."""
    length: PositiveCount = 256
    """Tokens in a sequence."""
    micro: PositiveCount | None = None
    """Sequences a worker runs at once. Left out, it is chosen to fit; halve it when memory runs out."""


class Optim(Section):
    lr: Annotated[Number, Field(gt=0)] = 6e-4
    """Highest learning rate."""
    schedule: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """How the rate moves after the warm-up; `wsd` stays up and falls linearly at the end."""
    warmup: Annotated[int | float, BeforeValidator(lambda v: _steps_or_share(v))] = 0.02
    """Steps (`2000`) or share of the horizon (`2%`) in which the rate rises."""
    warmup_shape: Literal["linear", "log"] = "linear"
    """`log` is DeepSpeed's logarithmic warm-up: lr · ln(step) / ln(warmup)."""
    decay: Annotated[int | float | None, BeforeValidator(lambda v: _steps_or_share(v))] = None
    """Steps or share of the horizon in which the rate falls. Left out: all after the warm-up; `wsd`: the last 20 %."""
    floor: Fraction = 0.0
    """Share of `lr` that the rate falls to."""
    horizon: PositiveCount | None = None
    """Steps the schedule is laid out for. Left out: the steps of `until` when the run first starts."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """AdamW's two running averages, such as [0.9, 0.95]."""
    eps: Annotated[Number, Field(gt=0)] = 1e-8
    """AdamW's epsilon."""
    weight_decay: Annotated[Number, Field(ge=0)] = 0.1
    """Decay of matrices and embeddings; biases and norms are left alone."""
    clip: Annotated[Number, Field(gt=0)] | None = 1.0
    """Largest norm of the gradients; null turns clipping off."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """What a NaN or Inf gradient does: stop the run, or skip the step (ten in a row stop it all the same)."""


class Until(Section):
    steps: PositiveCount | None = None
    """Optimizer steps."""
    tokens: PositiveCount | None = None
    """Tokens trained on."""
    epochs: PositiveCount | None = None
    """Times through the data; every sample is used exactly once in each."""
    time: Annotated[Seconds, Field(gt=0)] | None = None
    """Training time of one launch, such as `2h`; then it saves and pauses."""
    patience: PositiveCount | None = None
    """Evaluations without a better validation loss before the run ends early."""

    @model_validator(mode="after")
    def _some_end(self) -> Self:
        if not (self.steps or self.tokens or self.epochs or self.time):
            raise ValueError("it names no end; write until: {steps: 1000}, or tokens, epochs or time")
        return self


class Evaluate(Section):
    every: Annotated[Count, Field(ge=0)] = 100
    """Steps between evaluations on the held-out split; 0 evaluates at the end only."""
    sequences: PositiveCount = 64
    """Held-out sequences in one evaluation; the same ones each time."""


class Checkpoint(Section):
    every: Annotated[
        Literal["auto"]
        | PositiveInt
        | Annotated[float, Field(gt=0)]
        | Annotated[list[ScheduleStage], Field(min_length=1)],
        BeforeValidator(lambda v: _steps_or_time(v)),
    ] = "auto"
    """Steps (`500`), time (`10m`), stages (`[[2, 10], [100, 2000]]`: every 2 until step 10, then every 100 until 2000), or `auto`: as often as costs about 1 % of the time, at most once a minute."""  # noqa: E501
    keep: PositiveCount = 3
    """Newest checkpoints to keep."""
    keep_every: PositiveCount | None = None
    """Keep the checkpoint of every such step for good."""
    first: bool = False
    """Save step 0, before any training."""
    best: bool = True
    """Save and keep the checkpoint with the best validation loss."""
    resume: Annotated[
        Literal["auto"] | Annotated[int, Field(ge=0)], BeforeValidator(lambda v: v if v == "auto" else count(v))
    ] = "auto"
    """`auto` goes on from the newest whole checkpoint; a number goes back to that step."""

    def kept(self, steps: Collection[int], *, best: int | None) -> set[int]:
        """Which checkpoints stay, of those there are. `best` is the step with the best validation loss."""
        stay = set(sorted(steps)[-self.keep :])
        stay |= {step for step in steps if self.keep_every and step % self.keep_every == 0}
        return stay | ({best} if self.best and best is not None else set()) | ({0} if self.first else set())


class On(Section):
    kind: Literal["local"] = "local"
    """Where the run lives."""
    workers: PositiveCount | Literal["auto"] = "auto"
    """Processes; `auto` is one for each GPU, or one on a machine without."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What the workers compute on."""
    max_restarts: Annotated[Count, Field(ge=0)] = 3
    """Crashes in a row, with no new checkpoint between them, before the run is given up. When a script saves is its own affair: its count begins anew after ten minutes."""  # noqa: E501


class Log(Section):
    every: PositiveCount = 10
    """Steps between lines of metrics.jsonl."""
    tensorboard: bool = True
    """Write TensorBoard files under tb/."""
    attention: bool = False
    """Log the largest and smallest attention score of each layer."""
    parameters: bool = False
    """Log mean and standard deviation of every parameter and its gradient."""


class RunSpec(Section):
    name: Name = "run"
    """The run's name, and its folder's under runs/: letters, digits and . _ - after a letter or digit."""
    model: Model = Model()
    """A preset's name, or family and sizes."""
    data: Data
    """What to train on."""
    objective: Objective = Objective()
    """What the model learns to do."""
    batch: Batch = Batch()
    """The size of a step."""
    optim: Optim = Optim()
    """AdamW and its learning rate."""
    until: Until
    """When the run is done: what comes first of those given."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """`auto` is bf16 where the chip computes it natively (AMX, AVX512-BF16, recent GPUs), else fp32."""
    compile: Literal["auto"] | bool = "auto"
    """Compile the model; `auto` does when a compiler is there and the run is long enough to win the time back."""
    deterministic: bool = False
    """On a GPU, use only kernels that give the same bits each time. A CPU always does."""
    eval: Evaluate = Evaluate()
    """Evaluation on the held-out split."""
    checkpoint: Checkpoint = Checkpoint()
    """What is saved, and how often."""
    on: On = On()
    """Where it runs."""
    seed: Annotated[Count, Field(ge=0, lt=2**63)] = 0
    """Initial weights, order of samples and dropout follow from it."""
    log: Log = Log()
    """What is written down."""
    callbacks: list[Code] = []
    """Classes of your own, as `package.module:name`, that are told of every logged step, evaluation and save."""
    env: Variables = {}
    """Environment variables of the workers: plain values, kept in spec.yaml; not for secrets."""
    secrets: Secrets = {}
    """Environment variables that are never written down: a list of names taken from the environment, or where each comes from: `{HF_TOKEN: env:MY_TOKEN, KEY: file:./key}`."""  # noqa: E501

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.batch.length > self.model.context:
            raise ValueError(
                f"batch.length {self.batch.length} is more than model.context {self.model.context}; "
                f"set batch.length to {self.model.context} or less"
            )
        if self.data.stream and self.data.window < self.batch.length:
            raise ValueError(
                f"data.window {self.data.window} is less than one sequence of batch.length {self.batch.length}; "
                "set data.window to many of them, such as 64M"
            )
        if self.until.epochs and self.data.mix:
            raise ValueError(
                "until.epochs is not for a mixture, whose parts are gone through at paces of their own; "
                "set until.steps or until.tokens"
            )
        if self.log.attention and is_code(self.model.family):
            raise ValueError(f"log.attention cannot look into {self.model.family}; set log.attention to false")
        if self.until.patience and not (self.eval.every and self.data.validation):
            raise ValueError("until.patience needs evaluations; set eval.every and data.validation above 0")
        endless = self.until.steps is None and self.until.tokens is None and self.until.epochs is None
        if endless and self.optim.horizon is None and self.optim.schedule != "constant":
            raise ValueError(
                f"optim.schedule {self.optim.schedule} needs to know its end when until has only a time; "
                "set optim.horizon to a number of steps, or optim.schedule: constant"
            )
        return self


class ScriptSpec(Section):
    """A run of the user's own torchrun script: launched, watched and restarted like any other."""

    name: Name = "run"
    """The run's name, and its folder's under runs/: letters, digits and . _ - after a letter or digit."""
    script: Place
    """A Python file to run in every worker in place of our trainer, with the environment that torchrun gives."""
    args: list[Text] = []
    """What the script is given on its command line."""
    on: On = On()
    """Where it runs."""
    env: Variables = {}
    """Environment variables of the workers: plain values, kept in spec.yaml; not for secrets."""
    secrets: Secrets = {}
    """Environment variables that are never written down."""


AnySpec = RunSpec | ScriptSpec


def _settable(variables: dict[str, str]) -> dict[str, str]:
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(
                f"{name!r} cannot be set in an environment; give it a name without = and text without zero bytes"
            )
    return variables


def _secret_sources(secrets: dict[str, str]) -> dict[str, str]:
    for name, source in _settable(secrets).items():
        if not source.startswith(("env:", "file:")) or source.endswith(":"):
            raise ValueError(
                f"secrets.{name} does not say where it comes from; write env:NAME or file:PATH, never the secret itself"
            )
    return secrets


def _steps_or_share(value: object) -> object:
    """An int is steps, a float below 1 is a share of the horizon."""
    if isinstance(value, str):
        value = share(value) if value.strip().endswith("%") else count(value)
        if isinstance(value, float) and value >= 1:
            raise ValueError("a share of the horizon is less than 100%; write it as 2%, or as a number of steps")
    if isinstance(value, float) and value >= 1:
        value = count(value)
        if isinstance(value, float):
            raise ValueError(f"{value} is neither whole nor a share; write steps such as 2000, or a share such as 2%")
    if isinstance(value, (int, float)) and value < 0:
        raise ValueError(f"{value} is negative; write steps such as 2000, or a share such as 2%")
    return number(value)


def _steps_or_time(value: object) -> object:
    """An int is steps, a float is seconds."""
    if not isinstance(value, str) or value == "auto":
        return number(value)
    if value.strip().endswith(("s", "m", "h", "d", "w", "min")):  # `10m` is ten minutes: ten million steps help nobody
        return duration(value)
    return count(value)
