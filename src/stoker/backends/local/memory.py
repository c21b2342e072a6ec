"""Whether a run fits into the memory of this machine. Pure, from the spec's sizes and the facts."""

from stoker.backends.backend import Facts
from stoker.spec import estimate
from stoker.spec.code import is_code
from stoker.spec.data import TrainTokenizer
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from stoker.spec.presets import presets
from stoker.spec.run import RunSpec


def check_memory(spec: RunSpec, facts: Facts, *, device: str, workers: int, teacher: Model | None = None) -> None:
    """Raises UserError for what cannot fit even on an idle machine: every worker holds the whole model, its optimizer
    and the whole teacher.

    A model from the user's own code is not checked: its size is known only once it is built.
    """
    available = facts.gpu_memory if device == "cuda" else facts.memory
    if available is None or is_code(spec.model.family):
        return
    sharing = 1 if device == "cuda" else workers
    per_worker = bytes_per_worker(spec, spec.model, teacher)
    if per_worker * sharing <= available:
        return
    owner = "a GPU here" if device == "cuda" else "this machine"
    amount = f"{_gib(per_worker)} for each of {workers} workers" if sharing > 1 else _gib(per_worker)
    beside = " beside its teacher" * bool(teacher)
    raise UserError(
        f"training this {spec.model.family}{beside} needs at least {amount}, and {owner} has {_gib(available)}",
        remedy=_remedy(spec, available, per_worker, teacher),
    )


def bytes_per_worker(spec: RunSpec, model: Model, teacher: Model | None = None) -> int:
    """A lower bound: weights, gradients, optimizer, the activations of one sequence, and a teacher's weights."""
    trained = spec.data.tokenizer.train if isinstance(spec.data.tokenizer, TrainTokenizer) else 0
    vocab = model.vocab or spec.model.vocab or trained
    precision = "bf16" if spec.precision == "auto" else spec.precision
    length = min(spec.batch.length, model.context)
    state = estimate.state_bytes(estimate.parameters(model, vocab)).total
    return state + estimate.activation_bytes(model, vocab, length, precision) + _weight_bytes(teacher)


def _weight_bytes(teacher: Model | None) -> int:
    if teacher is None or is_code(teacher.family):
        return 0
    return estimate.state_bytes(estimate.parameters(teacher, teacher.vocab or 0)).weights


def _remedy(spec: RunSpec, available: int, per_worker: int, teacher: Model | None) -> str:
    if workers := available // per_worker:
        return f"Set on.workers={workers}, which fits"
    if _weight_bytes(teacher) > available:
        size = _gib(_weight_bytes(teacher))
        return f"Use a smaller teacher: its weights alone are {size}; or a machine with more memory"
    models = {name: Model.model_validate(preset.document.values) for name, preset in presets("model").items()}
    family = {name: model for name, model in models.items() if model.family == spec.model.family}
    bytes = {name: bytes_per_worker(spec, model, teacher) for name, model in family.items()}
    fitting = {name: size for name, size in bytes.items() if size <= available}
    if not fitting:
        return "Use fewer layers or a smaller width, or a machine with more memory"
    largest = max(fitting, key=lambda name: fitting[name])
    return f"The largest preset that fits is {largest} ({_gib(fitting[largest])}): model={largest}"


def _gib(bytes: int) -> str:
    return f"{bytes / 2**30:.1f} GiB"
