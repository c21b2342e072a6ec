"""RunSpec: what a run is, section by section. The docstring of a field is its help text, in the schema and the docs."""

from collections.abc import Collection
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from stoker.spec.code import is_code
from stoker.spec.data import Data
from stoker.spec.model import Model
from stoker.spec.on import AnyOn, LocalOn
from stoker.spec.section import Code, Fraction, Place, PositiveCount, Section
from stoker.spec.units import MAX_COUNT, Count, Number, Seconds, Share, Text, count, duration, number, share

ScheduleStage = tuple[PositiveCount, PositiveCount]
Name = Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Variables = Annotated[dict[str, Text], AfterValidator(lambda v: _valid_variables(v))]
MIN_PAIR_TOKENS = 8  # two sentences of two or three tokens, and three special tokens
Secrets = Annotated[dict[str, Text], AfterValidator(lambda v: _secret_sources(v))]


class Init(Section):
    path: Place | None = None
    """A run, a checkpoint folder, or a folder that transformers wrote: training starts from its weights."""
    layers: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None
    """Which of its blocks to use, counted from 0, such as [0, 2, 4, 7, 9, 11]. Default: all, or evenly spaced ones when the model has fewer."""  # noqa: E501
    freeze_positions: bool = False
    """Do not train the position embeddings."""

    def blocks(self, available: int, wanted: int) -> list[int]:
        """Which of the `available` blocks of the source a model of `wanted` blocks starts from."""
        if self.layers:
            return self.layers
        return [round(number * (available - 1) / max(1, wanted - 1)) for number in range(wanted)]

    @model_validator(mode="after")
    def _has_a_path(self) -> Self:
        if self.path is None and (self.layers or self.freeze_positions):
            raise ValueError("it has no path; write init: {path: runs/big}")
        return self


class Objective(Section):
    kind: Literal["causal", "masked", "distill"] | None = None
    """`causal`: predict the next token; `masked`: masked words and next sentences; `distill`: also match a teacher's predictions. Default: that of the model's family."""  # noqa: E501
    teacher: Place | None = None
    """A run, a checkpoint folder, or a folder that transformers wrote, of a model with the same vocabulary."""
    temperature: Annotated[Number, Field(gt=0)] = 2.0
    """Softens the predictions of both models before they are compared."""
    alpha_ce: Annotated[Number, Field(ge=0)] = 5.0
    """Weight of the teacher's predictions: temperature² · KL divergence."""
    alpha_clm: Annotated[Number, Field(ge=0)] = 1.0
    """Weight of the loss without a teacher."""
    alpha_mse: Annotated[Number, Field(ge=0)] = 0.0
    """Weight of the squared difference between both models' logits."""
    masking: Literal["epoch", "static"] = "epoch"
    """bert: choose the masked words again each `epoch`, or once. HDF5 files contain their masks."""
    whole_words: bool = False
    """bert: mask whole words, all pieces of a word or none."""
    predictions: PositiveCount = 20
    """bert: the most masked words in a sequence."""
    rate: Annotated[Share, Field(gt=0, lt=1)] = 0.15
    """bert: the share of a sequence's words that is masked, such as `15%`."""

    @model_validator(mode="after")
    def _teacher_fits(self) -> Self:
        if self.kind == "distill" and self.teacher is None:
            raise ValueError("distillation needs a teacher; set objective.teacher to a run or a folder")
        if self.teacher and self.kind not in (None, "distill"):
            raise ValueError(f"kind {self.kind} has no teacher; set kind to distill, or remove the teacher")
        if self.teacher and not (self.alpha_ce or self.alpha_mse):
            raise ValueError("the teacher has no weight in the loss; set alpha_ce or alpha_mse above 0")
        return self


class Batch(Section):
    sequences: PositiveCount = 32
    """Sequences per optimizer step, over all workers. The same for any number of workers."""
    length: PositiveCount = 256
    """Tokens per sequence."""
    micro: PositiveCount | None = None
    """Sequences per worker and forward pass. Default: as many as fit in memory; halve it when memory runs out."""


class Optim(Section):
    kind: Literal["adamw", "lamb"] = "adamw"
    """`lamb` scales the update of each matrix to the norm of the matrix: for very large batches."""
    lr: Annotated[Number, Field(gt=0)] = 6e-4
    """Highest learning rate."""
    schedule: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """Shape of the learning rate after the warm-up; `wsd` stays constant and decays linearly at the end."""
    warmup: Annotated[int | float, BeforeValidator(lambda v: _steps_or_share(v))] = 0.02
    """Steps (`2000`) or share of the horizon (`2%`) of the warm-up."""
    warmup_shape: Literal["linear", "log"] = "linear"
    """`log` is DeepSpeed's logarithmic warm-up: lr · ln(step) / ln(warmup)."""
    decay: Annotated[int | float | None, BeforeValidator(lambda v: _steps_or_share(v))] = None
    """Steps or share of the horizon of the decay. Default: all after the warm-up; `wsd`: the last 20 %."""
    floor: Fraction = 0.0
    """Final learning rate, as a share of `lr`. With 0 the last step changes nothing: step n of the horizon N has the rate of step n + 1 of Hugging Face's Trainer, so the first step of a warm-up has lr / warmup, not 0."""  # noqa: E501
    horizon: PositiveCount | None = None
    """Steps of the schedule. Default: the steps of `until` when the run first starts; a later `until.steps` does not extend the schedule, this does."""  # noqa: E501
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Adam's decay rates of the two running averages, such as [0.9, 0.95]."""
    eps: Annotated[Number, Field(gt=0)] = 1e-8
    """Added to the denominator of the update."""
    weight_decay: Annotated[Number, Field(ge=0)] = 0.1
    """Weight decay of matrices and embeddings; biases and norms have none."""
    clip: Annotated[Number, Field(gt=0)] | None = 1.0
    """Gradients are clipped to this norm; null turns clipping off."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """What a NaN or Inf gradient does: stop the run, or skip the step (ten in a row stop the run)."""


class Until(Section):
    steps: PositiveCount | None = None
    """Optimizer steps."""
    tokens: PositiveCount | None = None
    """Training tokens."""
    epochs: PositiveCount | None = None
    """Passes over the data; each uses every sample exactly once."""
    time: Annotated[Seconds, Field(gt=0)] | None = None
    """Training time of one launch, such as `2h`; then the run saves and pauses."""
    steps_this_run: PositiveCount | None = None
    """Steps of one launch; then the run saves and pauses."""
    patience: PositiveCount | None = None
    """Evaluations without a better validation loss before the run ends early."""

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if not (self.steps or self.tokens or self.epochs or self.time or self.steps_this_run):
            raise ValueError("it is empty; write until: {steps: 1000}, or tokens, epochs, time or steps_this_run")
        return self


class Evaluation(Section):
    every: Annotated[Count, Field(ge=0)] = 100
    """Steps between evaluations on the validation split; 0: only at the end."""
    sequences: PositiveCount = 64
    """Sequences per evaluation; the same ones each time."""


class Checkpoint(Section):
    every: Annotated[
        Literal["auto"]
        | Annotated[int, Field(gt=0, le=MAX_COUNT)]
        | Annotated[float, Field(gt=0)]
        | Annotated[list[ScheduleStage], Field(min_length=1)],
        BeforeValidator(lambda v: _steps_or_time(v)),
    ] = "auto"
    """Steps (`500`), time (`10m`), stages (`[[2, 10], [100, 2000]]`: every 2 until step 10, then every 100 until 2000), or `auto`: as often as takes about 1 % of the time, at most once a minute."""  # noqa: E501
    keep: PositiveCount = 3
    """How many of the newest checkpoints to keep."""
    keep_every: PositiveCount | None = None
    """Also keep the checkpoints of steps that are multiples of this."""
    first: bool = False
    """Save step 0, before any training."""
    best: bool = True
    """Save and keep the checkpoint with the best validation loss."""
    resume: Annotated[
        Literal["auto"] | Annotated[int, Field(ge=0)], BeforeValidator(lambda v: v if v == "auto" else count(v))
    ] = "auto"
    """`auto` resumes from the newest complete checkpoint; a number resumes from that step."""

    def kept(self, steps: Collection[int], *, best: int | None) -> set[int]:
        """Which of these checkpoints to keep. `best` is the step with the best validation loss."""
        kept = set(sorted(steps)[-self.keep :])
        kept |= {step for step in steps if self.keep_every and step % self.keep_every == 0}
        return kept | ({best} if self.best and best is not None else set()) | ({0} if self.first else set())


class Log(Section):
    every: PositiveCount = 10
    """Steps between lines of metrics.jsonl."""
    tensorboard: bool = True
    """Write TensorBoard files under tb/."""
    attention: bool = False
    """Log the largest and smallest attention score of each layer."""
    parameters: bool = False
    """Log the mean and standard deviation of every parameter and its gradient."""


class RunSpec(Section):
    name: Name = "run"
    """Name of the run, and of its folder under runs/: a letter or digit, then up to 99 letters, digits and . _ -"""
    model: Model = Model()
    """Name of a preset, or family and sizes."""
    data: Data
    """The training data."""
    init: Init = Init()
    """Initial weights. Default: random."""
    objective: Objective = Objective()
    """The training objective."""
    batch: Batch = Batch()
    """Size of an optimizer step."""
    optim: Optim = Optim()
    """Optimizer and learning rate."""
    until: Until
    """When the run is done: at the first of these limits."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """`auto`: bf16 where the hardware supports it natively (AMX, AVX512-BF16, recent GPUs), else fp32."""
    compile: Literal["auto"] | bool = "auto"
    """Use torch.compile; `auto`: when a compiler is installed and the run is long enough to gain from it."""
    deterministic: bool = False
    """On a GPU, use only deterministic kernels. On a CPU results are always deterministic."""
    eval: Evaluation = Evaluation()
    """Evaluation on the validation split."""
    checkpoint: Checkpoint = Checkpoint()
    """Checkpoints: how often to save, and which to keep."""
    on: AnyOn = LocalOn()
    """Where it runs."""
    seed: Annotated[Count, Field(ge=0)] = 0
    """Determines initial weights, sample order and dropout."""
    log: Log = Log()
    """What is logged."""
    callbacks: list[Code] = []
    """Your own classes, as `package.module:name`, called at every logged step, evaluation and save."""
    env: Variables = {}
    """Environment variables of the workers, stored in spec.yaml: not for secrets."""
    secrets: Secrets = {}
    """Environment variables that are never stored: a list of names to take from the environment, or a source for each: `{HF_TOKEN: env:MY_TOKEN, KEY: file:./key}`."""  # noqa: E501

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.on.etcd_endpoint:
            raise ValueError("on.rendezvous is for scripts (script: train.py); remove it: our trainer needs no etcd")
        if self.init.path is None or "model" in self.model_fields_set:
            self._model_agrees()  # else the model is that of init.path, which is not read here
        if self.data.stream and self.data.window < self.batch.length:
            raise ValueError(
                f"data.window {self.data.window} is less than one sequence of batch.length {self.batch.length}; "
                "set data.window to many sequences, such as 64M"
            )
        if self.until.epochs and self.data.mix:
            raise ValueError(
                "until.epochs cannot be used with data.mix, whose parts repeat at different rates; "
                "set until.steps or until.tokens"
            )
        if self.until.patience and not (self.eval.every and self.data.validation):
            raise ValueError("until.patience needs evaluations; set eval.every and data.validation above 0")
        endless = self.until.steps is None and self.until.tokens is None and self.until.epochs is None
        if endless and self.optim.horizon is None and self.optim.schedule != "constant":
            raise ValueError(
                f"optim.schedule {self.optim.schedule} needs a number of steps, and until has only time or "
                "steps_this_run, which end a launch; "
                "set optim.horizon to a number of steps, or optim.schedule to constant"
            )
        return self

    def _model_agrees(self) -> None:
        if self.batch.length > self.model.context:
            raise ValueError(
                f"batch.length {self.batch.length} is more than model.context {self.model.context}; "
                f"set batch.length to {self.model.context} or less"
            )
        natural = "masked" if self.model.masked else "causal"
        if self.objective.kind not in (None, natural, "distill"):
            raise ValueError(
                f"objective.kind is {self.objective.kind}, and a {self.model.family} is trained with {natural}; "
                "remove objective.kind"
            )
        if self.model.masked and (self.data.mix or self.data.stream):
            raise ValueError(
                f"a {self.model.family} trains on sentence pairs, which cannot be mixed or streamed; "
                "remove data.mix and data.stream"
            )
        if self.model.masked and self.batch.length < MIN_PAIR_TOKENS:
            raise ValueError(
                f"batch.length {self.batch.length} is too short for two sentences and their special tokens; "
                f"set batch.length to {MIN_PAIR_TOKENS} or more"
            )
        if self.log.attention and (self.model.masked or is_code(self.model.family)):
            raise ValueError(f"log.attention is not supported for {self.model.family}; set log.attention to false")


class ScriptSpec(Section):
    """A run of the user's own torchrun script: launched, watched and restarted like any other."""

    name: Name = "run"
    """Name of the run, and of its folder under runs/: a letter or digit, then up to 99 letters, digits and . _ -"""
    script: Place
    """A Python file that every worker runs instead of our trainer, with torchrun's environment. On Kubernetes without `on.registry` it is an absolute path in the image."""  # noqa: E501
    args: list[Text] = []
    """Command line arguments of the script."""
    on: AnyOn = LocalOn()
    """Where it runs."""
    env: Variables = {}
    """Environment variables of the workers, stored in spec.yaml: not for secrets."""
    secrets: Secrets = {}
    """Environment variables that are never stored."""


AnySpec = RunSpec | ScriptSpec


def _valid_variables(variables: dict[str, str]) -> dict[str, str]:
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(
                f"{name!r} cannot be an environment variable; use a name without = and text without zero bytes"
            )
    return variables


def _secret_sources(secrets: dict[str, str]) -> dict[str, str]:
    for name, source in _valid_variables(secrets).items():
        if not source.startswith(("env:", "file:")) or source.endswith(":"):
            raise ValueError(f"secrets.{name} has no source; write env:NAME or file:PATH, never the secret itself")
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
            raise ValueError(
                f"{value} is neither a whole number nor a share; write steps such as 2000, or a share such as 2%"
            )
    if isinstance(value, int) and value > MAX_COUNT:
        raise ValueError(f"{value} is too large; write steps such as 2000, or a share such as 2%")
    if isinstance(value, (int, float)) and value < 0:
        raise ValueError(f"{value} is negative; write steps such as 2000, or a share such as 2%")
    return number(value)


def _steps_or_time(value: object) -> object:
    """An int is steps, a float is seconds."""
    if not isinstance(value, str) or value == "auto":
        return number(value)
    if value.strip().endswith(("s", "m", "h", "d", "w", "min")):  # `10m` is ten minutes, not ten million steps
        return duration(value)
    return count(value)
