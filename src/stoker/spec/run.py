"""RunSpec: what a run is, section by section. The doc under a field is its help, its schema text and its reference."""

from collections.abc import Collection
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from stoker.spec.code import is_code
from stoker.spec.data import Data
from stoker.spec.model import Model
from stoker.spec.on import On
from stoker.spec.section import Code, Fraction, Place, PositiveCount, Section
from stoker.spec.units import MOST, Count, Number, Seconds, Share, Text, count, duration, number, share

ScheduleStage = tuple[PositiveCount, PositiveCount]
Name = Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Variables = Annotated[dict[str, Text], AfterValidator(lambda v: _settable(v))]
SHORTEST_PAIR = 8  # tokens: two sentences of two or three, and the three that stand around them
Secrets = Annotated[dict[str, Text], AfterValidator(lambda v: _secret_sources(v))]


class Init(Section):
    path: Place | None = None
    """A run, a checkpoint's folder, or a folder that transformers wrote: its weights are what this run begins with."""
    layers: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None
    """Which of its blocks to take, counted from 0, such as [0, 2, 4, 7, 9, 11]. Left out: all, or evenly spread ones when the model has fewer."""  # noqa: E501
    freeze_positions: bool = False
    """Leave the position embeddings as they are."""

    def taken(self, there: int, wanted: int) -> list[int]:
        """Which blocks of a model of so many a model of `wanted` begins with."""
        if self.layers:
            return self.layers
        return [round(number * (there - 1) / max(1, wanted - 1)) for number in range(wanted)]

    @model_validator(mode="after")
    def _of_something(self) -> Self:
        if self.path is None and (self.layers or self.freeze_positions):
            raise ValueError("it says what to take and not where from; write init: {path: runs/big}")
        return self


class Objective(Section):
    kind: Literal["causal", "masked", "distill"] | None = None
    """`causal`: predict the next token; `masked`: masked words and next sentences; `distill`: what a teacher predicts too. Left out: what the model's family learns."""  # noqa: E501
    teacher: Place | None = None
    """A run, a checkpoint's folder, or a folder that transformers wrote, of a model with the same vocabulary."""
    temperature: Annotated[Number, Field(gt=0)] = 2.0
    """Both models' predictions are softened by it before they are compared."""
    alpha_ce: Annotated[Number, Field(ge=0)] = 5.0
    """Weight of the teacher's predictions: temperature² · KL divergence."""
    alpha_clm: Annotated[Number, Field(ge=0)] = 1.0
    """Weight of what the family learns without a teacher."""
    alpha_mse: Annotated[Number, Field(ge=0)] = 0.0
    """Weight of the squared difference between both models' logits."""
    masking: Literal["epoch", "static"] = "epoch"
    """bert: draw which words are masked anew each `epoch`, or once. HDF5 files bring the masks they were made with."""
    whole_words: bool = False
    """bert: mask whole words, all pieces of a word or none."""
    predictions: PositiveCount = 20
    """bert: the most masked words in a sequence."""
    rate: Annotated[Share, Field(gt=0, lt=1)] = 0.15
    """bert: the share of a sequence's words that is masked, such as `15%`."""

    @model_validator(mode="after")
    def _taught_or_not(self) -> Self:
        if self.kind == "distill" and self.teacher is None:
            raise ValueError("distillation needs a teacher; set objective.teacher to a run or a folder")
        if self.teacher and self.kind not in (None, "distill"):
            raise ValueError(f"kind {self.kind} has no teacher; set kind to distill, or take the teacher out")
        if self.teacher and not (self.alpha_ce or self.alpha_mse):
            raise ValueError("nothing is learnt from the teacher; set alpha_ce or alpha_mse above 0")
        return self


class Batch(Section):
    sequences: PositiveCount = 32
    """Sequences in one optimizer step, over all workers. Stays the same at any number of workers."""
    length: PositiveCount = 256
    """Tokens in a sequence."""
    micro: PositiveCount | None = None
    """Sequences a worker runs at once. Left out, it is chosen to fit; halve it when memory runs out."""


class Optim(Section):
    kind: Literal["adamw", "lamb"] = "adamw"
    """`lamb` scales the update of each matrix to the matrix's own size: for very large batches."""
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
    """Share of `lr` that the rate falls to, at the last step of the schedule. With 0 that step changes nothing: step n of the horizon N has the rate that Hugging Face's Trainer gives its step n + 1, so the first step of a warm-up has lr / warmup, not 0."""  # noqa: E501
    horizon: PositiveCount | None = None
    """Steps the schedule is laid out for. Left out: the steps of `until` when the run first starts; a later `until.steps` does not extend it, this does."""  # noqa: E501
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """The two running averages, such as [0.9, 0.95]."""
    eps: Annotated[Number, Field(gt=0)] = 1e-8
    """Added to the root of the second average."""
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
    steps_this_run: PositiveCount | None = None
    """Steps of one launch; then it saves and pauses."""
    patience: PositiveCount | None = None
    """Evaluations without a better validation loss before the run ends early."""

    @model_validator(mode="after")
    def _some_end(self) -> Self:
        if not (self.steps or self.tokens or self.epochs or self.time or self.steps_this_run):
            raise ValueError("it names no end; write until: {steps: 1000}, or tokens, epochs, time or steps_this_run")
        return self


class Evaluate(Section):
    every: Annotated[Count, Field(ge=0)] = 100
    """Steps between evaluations on the held-out split; 0 evaluates at the end only."""
    sequences: PositiveCount = 64
    """Held-out sequences in one evaluation; the same ones each time."""


class Checkpoint(Section):
    every: Annotated[
        Literal["auto"]
        | Annotated[int, Field(gt=0, le=MOST)]
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
    """The run's name, and its folder's under runs/: up to 100 letters, digits and . _ - after a letter or digit."""
    model: Model = Model()
    """A preset's name, or family and sizes."""
    data: Data
    """What to train on."""
    init: Init = Init()
    """The weights to begin with. Left out: random ones."""
    objective: Objective = Objective()
    """What the model learns to do."""
    batch: Batch = Batch()
    """The size of a step."""
    optim: Optim = Optim()
    """The optimizer and its learning rate."""
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
    seed: Annotated[Count, Field(ge=0)] = 0
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
        if self.on.rendezvous != "own":
            raise ValueError("on.rendezvous is for scripts (script: train.py); take it out: our trainer needs no etcd")
        if self.init.path is None or "model" in self.model_fields_set:
            self._model_agrees()  # else it is the one there, and nobody has looked yet
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
        if self.until.patience and not (self.eval.every and self.data.validation):
            raise ValueError("until.patience needs evaluations; set eval.every and data.validation above 0")
        endless = self.until.steps is None and self.until.tokens is None and self.until.epochs is None
        if endless and self.optim.horizon is None and self.optim.schedule != "constant":
            raise ValueError(
                f"optim.schedule {self.optim.schedule} needs to know its end, and until has only time or "
                "steps_this_run, which end a launch; "
                "set optim.horizon to a number of steps, or optim.schedule: constant"
            )
        return self

    def _model_agrees(self) -> None:
        if self.batch.length > self.model.context:
            raise ValueError(
                f"batch.length {self.batch.length} is more than model.context {self.model.context}; "
                f"set batch.length to {self.model.context} or less"
            )
        learnt = "masked" if self.model.masked else "causal"
        if self.objective.kind not in (None, learnt, "distill"):
            raise ValueError(
                f"objective.kind is {self.objective.kind}, and a {self.model.family} learns {learnt}; leave it out"
            )
        if self.model.masked and (self.data.mix or self.data.stream):
            raise ValueError(
                f"a {self.model.family} reads sentence pairs, and these are prepared whole; "
                "leave data.mix and data.stream out"
            )
        if self.log.attention and is_code(self.model.family):
            raise ValueError(f"log.attention cannot look into {self.model.family}; set log.attention to false")
        if self.model.masked:
            self._pairs_agree()

    def _pairs_agree(self) -> None:
        if self.batch.length < SHORTEST_PAIR:
            raise ValueError(
                f"batch.length {self.batch.length} has no room for two sentences and what stands around them; "
                f"set batch.length to {SHORTEST_PAIR} or more"
            )
        if self.log.attention:
            raise ValueError(f"log.attention cannot look into a {self.model.family}; set log.attention to false")


class ScriptSpec(Section):
    """A run of the user's own torchrun script: launched, watched and restarted like any other."""

    name: Name = "run"
    """The run's name, and its folder's under runs/: up to 100 letters, digits and . _ - after a letter or digit."""
    script: Place
    """A Python file to run in every worker in place of our trainer, with the environment that torchrun gives. On Kubernetes without `on.registry` it is an absolute path in the image."""  # noqa: E501
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
    if isinstance(value, int) and value > MOST:
        raise ValueError(f"{value} is too large; write steps such as 2000, or a share such as 2%")
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
