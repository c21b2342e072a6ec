"""Does a run fit into the memory of a place? Pure, from the spec's numbers and the facts."""

from stoker.launch.backend import Facts
from stoker.spec import sizes
from stoker.spec.code import is_code
from stoker.spec.data import TrainTokenizer
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from stoker.spec.presets import presets
from stoker.spec.run import RunSpec


def check_room(spec: RunSpec, facts: Facts, *, device: str, workers: int, teacher: Model | None = None) -> None:
    """Refuses what cannot fit, whatever else the machine does: every worker holds the whole model and its optimizer,
    and the whole teacher.

    Of a model of the user's own nobody knows how large it is before it is built.
    """
    there = facts.gpu_memory if device == "cuda" else facts.memory
    if there is None or is_code(spec.model.family):
        return
    sharing = 1 if device == "cuda" else workers
    each = needed(spec, spec.model, teacher)
    if each * sharing <= there:
        return
    place = f"a GPU here has {_gib(there)}" if device == "cuda" else f"this machine has {_gib(there)}"
    what = f"{_gib(each)} for each of {workers} workers" if sharing > 1 else _gib(each)
    raise UserError(
        f"training this {spec.model.family}{' beside its teacher' * bool(teacher)} needs at least {what}, and {place}",
        remedy=_remedy(spec, there, each, teacher),
    )


def needed(spec: RunSpec, model: Model, teacher: Model | None = None) -> int:
    """Bytes of one worker at the least: weights, gradients, optimizer, one sequence on its way; a teacher's weights."""
    trained = spec.data.tokenizer.train if isinstance(spec.data.tokenizer, TrainTokenizer) else 0
    vocab = model.vocab or spec.model.vocab or trained
    precision = "bf16" if spec.precision == "auto" else spec.precision
    length = min(spec.batch.length, model.context)
    state = sizes.state_bytes(sizes.parameters(model, vocab)).total
    return state + sizes.activation_bytes(model, vocab, length, precision) + _held(teacher)


def _held(teacher: Model | None) -> int:
    if teacher is None or is_code(teacher.family):
        return 0
    return sizes.state_bytes(sizes.parameters(teacher, teacher.vocab or 0)).weights


def _remedy(spec: RunSpec, there: int, each: int, teacher: Model | None) -> str:
    if fit := there // each:
        return f"Set on.workers={fit}: so many fit"
    if _held(teacher) > there:
        return f"Take a smaller teacher: its weights alone are {_gib(_held(teacher))}; or a machine with more memory"
    models = {name: Model.model_validate(one.document.values) for name, one in presets("model").items()}
    bytes = {name: needed(spec, model, teacher) for name, model in models.items() if model.family == spec.model.family}
    fitting = {name: size for name, size in bytes.items() if size <= there}
    if not fitting:
        return "Take fewer layers or a smaller width, or a machine with more memory"
    largest = max(fitting, key=lambda name: fitting[name])
    return f"The largest preset that fits is {largest} ({_gib(fitting[largest])}): model={largest}"


def _gib(bytes: int) -> str:
    return f"{bytes / 2**30:.1f} GiB"
