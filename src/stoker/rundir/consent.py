"""Code that a run names is executed only with the user's consent.

A run directory may be copied, downloaded or another user's, and its spec.yaml can name any module, script or image.
Users who launch a run from a run file give their consent: it is recorded outside the run, in the user's state folder,
with the run's absolute path and exactly the code that it names. Any other run needs `--trust`. The same applies to the
image in the place.json of a run in a cluster, from which pods are created to read its volume.

Workers and supervisors do not check again: the command that started them has.
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stoker.rundir.directory import RunDir, write_json
from stoker.spec import contract
from stoker.spec.bounded import read_json
from stoker.spec.code import is_code
from stoker.spec.errors import UserError
from stoker.spec.run import AnySpec, RunSpec
from stoker.spec.trust import is_trusted

MAX_SHOWN = 5  # names in a message
RUN_FILES = (  # a run directory has some of these beside its spec.yaml
    contract.CHECKPOINTS_DIR,
    contract.LEDGER_DIR,
    contract.LOGS_DIR,
    contract.METRICS_FILE,
    contract.EVENTS_FILE,
    contract.EXIT_FILE,
    contract.DATA_FILE,
)


def model_code(spec: RunSpec) -> list[str]:
    """Code that is imported to use the model of a run."""
    return [f"model.family={spec.model.family}"] if is_code(spec.model.family) else []


def training_code(spec: RunSpec) -> list[str]:
    """Code that is executed to train the model again: environment variables can make a process load code too."""
    return model_code(spec) + [f"env.{name}={value}" for name, value in spec.env.items()]


def launched_code(spec: AnySpec) -> list[str]:
    """Everything that is executed, or passed to it, when a run is launched by its spec.yaml."""
    if isinstance(spec, RunSpec):
        code = training_code(spec) + [f"callbacks={ref}" for ref in spec.callbacks]
        code += [f"data.path={ref}" for ref in spec.data.paths if is_code(ref)]
    else:
        code = [f"script={spec.script}", *(f"env.{name}={value}" for name, value in spec.env.items())]
    code += [f"secrets.{name}={source}" for name, source in spec.secrets.items()]
    return code + spec.on.named_code()


class NotTrusted(UserError):
    """The run names code that this user has not launched."""


def require(run: RunDir, code: Sequence[str]) -> None:
    """Raises NotTrusted if the run names code that this user has not launched in this folder."""
    if not code or is_trusted():
        return
    recorded = _recorded(run)
    unknown = [ref for ref in code if _digest(ref) not in recorded]
    if unknown:
        # the values of variables are not shown
        shown = [ref.partition("=")[0] if ref.startswith("env.") else ref for ref in unknown]
        more = f" and {len(shown) - MAX_SHOWN} more" if len(shown) > MAX_SHOWN else ""
        raise NotTrusted(
            f"run '{run.name}' names code that would be executed here, and was not launched by you at {run.path}: "
            f"{', '.join(shown[:MAX_SHOWN])}{more}",
            remedy="Read that code, and add --trust if you trust it",
        )


def require_launch(run: RunDir, spec: AnySpec) -> None:
    """Before a run is launched by its own spec.yaml; `spec` includes the user's overrides."""
    before = launched_code(run.any_spec())  # the rest comes from the user's overrides
    require(run, [ref for ref in launched_code(spec) if ref in before])


def require_image(run: RunDir, image: str) -> None:
    """Before a pod is created in the user's cluster from place.json and spec.yaml."""
    require(run, [*_image_code(image), *launched_code(run.any_spec())])


def run_of(file: Path) -> RunDir | None:
    """The run that this spec.yaml belongs to, if any: such a file is not the user's run file."""
    beside = any((file.parent / name).exists() for name in RUN_FILES)
    return RunDir(file.parent) if file.name == contract.SPEC_FILE and beside else None


def record(run: RunDir, spec: AnySpec) -> None:
    """This user launches the run: the code that it names now is trusted, and no code that it named before."""
    _write(run, code=launched_code(spec), place=_read(run, "place"))


def record_image(run: RunDir, image: str) -> None:
    """This user creates the run's job with that image."""
    _write(run, code=launched_code(run.any_spec()), place=[_digest(ref) for ref in _image_code(image)])


def _image_code(image: str) -> list[str]:
    return [f"place.image={image}"]


def _write(run: RunDir, *, code: Sequence[str], place: Sequence[object]) -> None:
    with suppress(OSError, RuntimeError):  # without a home folder nothing is recorded, and --trust is needed
        file = _file(run)
        if not code and not place:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(file.parent, 0o700)
        record = {
            "run": os.path.realpath(run.path),
            "code": [_digest(ref) for ref in code],
            "place": list(place),
        }
        write_json(file, record)


def _recorded(run: RunDir) -> list[object]:
    return [*_read(run, "code"), *_read(run, "place")]


def _read(run: RunDir, key: str) -> list[object]:
    try:
        record = read_json(_file(run))
    except (OSError, ValueError, RuntimeError):
        return []
    digests = record.get(key) if isinstance(record, dict) and record.get("run") == os.path.realpath(run.path) else None
    return digests if isinstance(digests, list) else []


def _digest(ref: str) -> str:
    """Hashed, so that the values of variables are not stored again."""
    return hashlib.sha256(ref.encode(errors="surrogateescape")).hexdigest()


def _file(run: RunDir) -> Path:
    name = hashlib.sha256(os.fsencode(os.path.realpath(run.path))).hexdigest()
    return _home() / "launched" / f"{name}.json"


def _home() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "stoker"
