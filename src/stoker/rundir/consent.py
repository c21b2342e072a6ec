"""Code that a run names is executed only with the user's consent.

A run directory may be copied, downloaded or another user's, and its spec.yaml can name any module, script or image. To
launch a run from one's own run file is consent: a record of it is kept outside the run, in the user's state folder,
with the run's absolute path and exactly the code that it names. For any other run the user says `--trust`. Where a run
lives in a cluster, its place.json names the image that pods are made of to read its volume: the same holds for them.

Workers and supervisors do not ask again: they are started only by a command that has.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stoker.rundir.directory import PlaceRef, RunDir, write_json
from stoker.spec import contract
from stoker.spec.bounded import read_json
from stoker.spec.code import is_code
from stoker.spec.errors import UserError
from stoker.spec.run import AnySpec, RunSpec
from stoker.spec.trust import is_trusted

SHOWN = 5  # names in a message
BESIDE = (  # what a run directory has beside its spec.yaml
    contract.CHECKPOINTS_DIR,
    contract.LEDGER_DIR,
    contract.LOGS_DIR,
    contract.METRICS_FILE,
    contract.EVENTS_FILE,
    contract.EXIT_FILE,
    contract.DATA_FILE,
)


def model_code(spec: RunSpec) -> list[str]:
    """What is imported to use the model of a run."""
    return [f"model.family={spec.model.family}"] if is_code(spec.model.family) else []


def training_code(spec: RunSpec) -> list[str]:
    """What is executed to train the model again: variables, too, can have a process load code."""
    return model_code(spec) + [f"env.{name}={value}" for name, value in spec.env.items()]


def launched_code(spec: AnySpec) -> list[str]:
    """All that is executed, or handed to what is, when a run is launched as its spec.yaml says."""
    if isinstance(spec, RunSpec):
        named = training_code(spec) + [f"callbacks={word}" for word in spec.callbacks]
        named += [f"data.path={word}" for word in spec.data.paths if is_code(word)]
    else:
        named = [f"script={spec.script}", *(f"env.{name}={value}" for name, value in spec.env.items())]
    named += [f"secrets.{name}={source}" for name, source in spec.secrets.items()]
    named += [f"on.image={spec.on.image}"] if spec.on.image else []
    named += [f"on.registry={spec.on.registry}"] if spec.on.registry else []
    return named + ([f"on.pod={json.dumps(spec.on.pod, sort_keys=True, default=str)}"] if spec.on.pod else [])


def require(run: RunDir, named: Sequence[str]) -> None:
    """Raises UserError when the run names code that this user has not launched there."""
    if not named or is_trusted():
        return
    recorded = _recorded(run)
    unknown = [word for word in named if _digest(word) not in recorded]
    if unknown:
        # what a variable holds is not shown
        shown = [word.partition("=")[0] if word.startswith("env.") else word for word in unknown]
        more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
        raise UserError(
            f"run '{run.name}' names code that would be executed here, and was not launched by you at {run.path}: "
            f"{', '.join(shown[:SHOWN])}{more}",
            remedy="Look at it, and add --trust if you trust it",
        )


def require_launch(run: RunDir, spec: AnySpec) -> None:
    """Before a run is launched as its own spec.yaml says, and overrides, which made `spec` of it."""
    before = launched_code(run.any_spec())  # what is not in it was said by the user
    require(run, [named for named in launched_code(spec) if named in before])


def require_pods(run: RunDir, place: PlaceRef) -> None:
    """Before a pod is made in the user's cluster as place.json and spec.yaml say."""
    require(run, [*_placed(place), *launched_code(run.any_spec())])


def run_of(file: Path) -> RunDir | None:
    """The run whose own spec.yaml this is: such a file is not the user's run file."""
    beside = any((file.parent / name).exists() for name in BESIDE)
    return RunDir(file.parent) if file.name == contract.SPEC_FILE and beside else None


def record(run: RunDir, spec: AnySpec) -> None:
    """This user launches the run: what it names now is trusted from now on, and nothing that it named before."""
    _write(run, code=launched_code(spec), place=_held(run, "place"))


def record_place(run: RunDir, place: PlaceRef) -> None:
    """This user has the run's job made there, with that image."""
    _write(run, code=launched_code(run.any_spec()), place=[_digest(word) for word in _placed(place)])


def _placed(place: PlaceRef) -> list[str]:
    return [f"place.image={place.image}"]


def _write(run: RunDir, *, code: Sequence[str], place: Sequence[object]) -> None:
    with suppress(OSError, RuntimeError):  # without a home there is no record, and a reader says --trust
        file = _file(run)
        if not code and not place:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(file.parent, 0o700)
        held = {"run": os.path.realpath(run.path), "code": [_digest(word) for word in code], "place": list(place)}
        write_json(file, held)


def _recorded(run: RunDir) -> list[object]:
    return [*_held(run, "code"), *_held(run, "place")]


def _held(run: RunDir, key: str) -> list[object]:
    try:
        held = read_json(_file(run))
    except (OSError, ValueError, RuntimeError):
        return []
    words = held.get(key) if isinstance(held, dict) and held.get("run") == os.path.realpath(run.path) else None
    return words if isinstance(words, list) else []


def _digest(word: str) -> str:
    """What is kept: the value of a variable is not written down once more."""
    return hashlib.sha256(word.encode(errors="surrogateescape")).hexdigest()


def _file(run: RunDir) -> Path:
    name = hashlib.sha256(os.fsencode(os.path.realpath(run.path))).hexdigest()
    return _home() / "launched" / f"{name}.json"


def _home() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "stoker"
