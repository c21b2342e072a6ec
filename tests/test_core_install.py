"""`pip install .`, without an extra, is a working client: it plans, launches to a cluster, watches and explains."""

import gzip
import json
import re
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stoker.cli.main import VERBS
from stoker.image.requirements import needs
from stoker.rundir import DataRef, RunDir, events
from stoker.spec.data import Data
from stoker.spec.extras import EXTRAS
from stoker.spec.run import RunSpec, ScriptSpec, Until
from tests.limited import Limited

SRC = Path(__file__).parents[1] / "src"
PYPROJECT = SRC.parent / "pyproject.toml"
NEEDS_AN_EXTRA = re.compile(  # modules that import an optional package
    r"stoker\.((models|train|inference)\b.*|storage\.(s3|gcs)|data\.sources\.parquet|.*torchx.*|.*app_def"
    r"|cli\.(generate|eval|masked_lm|export|import_model)|api\.evaluation)"
)
KUBERNETES = ("on.kind=kubernetes", "on.image=example/image:1", "on.volume=training")
BLOCK = """
import sys
from importlib import metadata

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

def from_name(name, original=metadata.Distribution.from_name):
    if name in {names!r}:
        raise metadata.PackageNotFoundError(name)
    return original(name)

sys.meta_path.insert(0, Absent())
metadata.Distribution.from_name = from_name
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Limited:
    """Python that can import only the standard library, Stoker and the packages it requires without an extra."""
    allowed = set(_closure("stoker"))
    by_module = metadata.packages_distributions()
    absent = {
        module
        for module, distributions in by_module.items()
        if not allowed & {canonicalize_name(distribution) for distribution in distributions}
    }
    assert {"torch", "pyarrow", "h5py", "transformers", "boto3", "torchx"} <= absent
    assert not {"numpy", "tokenizers", "pydantic", "stoker"} & absent
    return Limited.by(BLOCK.format(names=absent), tmp_path_factory.mktemp("core"))


def _closure(name: str, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """The distributions that a distribution requires without extras, and itself."""
    name = canonicalize_name(name)
    if name in seen:
        return
    yield name
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from _closure(requirement.name, seen | {name})


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run directory that was copied from another machine."""
    run = RunDir(tmp_path / "runs" / "tale")
    run.create(RunSpec(name="tale", data=Data(path="x"), until=Until(steps=8)), DataRef(shards="/nowhere", key="k"))
    run.add_event(events.Started(steps=8, tokens_per_step=32, chip="CPU", parameters=8), rank=0)
    run.add_metrics({"step": 4, "time": time.time(), "loss": 2.5, "tokens_per_second": 64.0})
    run.log(0).parent.mkdir(exist_ok=True)
    run.log(0).write_text("rank 0 of 1\n")
    return run


def test_every_verb_prints_its_help(core: Limited, tmp_path: Path) -> None:
    for verb, ended in zip(VERBS, core.verbs(*([verb, "--help"] for verb in VERBS), cwd=tmp_path), strict=True):
        assert (ended.code, ended.err) == (0, ""), verb
        assert f"usage: stoker {verb}" in ended.out


def test_every_module_that_needs_no_extra_can_be_imported(core: Limited, tmp_path: Path) -> None:
    paths = (path.relative_to(SRC).with_suffix("") for path in (SRC / "stoker").rglob("*.py"))
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths if path.name != "__main__"]
    light = [name for name in sorted(names) if not NEEDS_AN_EXTRA.fullmatch(name)]
    code = "import importlib, json, sys\nfor name in json.loads(sys.argv[1]): importlib.import_module(name)"
    done = core.python(code, json.dumps(light), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_it_prepares_text_and_plans_for_a_cluster(core: Limited, tmp_path: Path, books: Path) -> None:
    plan = ("launch", "run.yaml", *KUBERNETES, "--dry-run")
    done = core.verbs(
        ["init", str(books)],
        ["prepare", str(books), "-o", "set", "--tokenizer", "300"],
        plan,
        [*plan, "data=./set"],
        ["explain", "optim.lr", "run.yaml"],
        ["presets"],
        ["schema"],
        ["completion", "bash"],
        cwd=tmp_path,
    )
    assert [ended.code for ended in done] == [0] * len(done), done
    for ended in done[2:4]:
        assert {item["kind"] for item in yaml.safe_load_all(ended.out)} == {"Service", "Job"}
    assert "eval" in done[-1].out
    assert "--temperature" in done[-1].out


def test_it_watches_a_run(core: Limited, tmp_path: Path, run: RunDir) -> None:
    commands = [["ps"], ["status", "tale"], ["events", "tale"], ["logs", "tale"], ["why", "tale"], ["top", "tale"]]
    done = core.verbs(*commands, cwd=tmp_path)
    assert [ended.code for ended in done] == [0] * len(commands), done
    assert "2.5000" in done[0].out
    assert "4 of 8" in done[1].out
    assert run.name in done[0].out


@pytest.mark.parametrize(
    ("extra", "package", "command"),
    [
        ("train", "torch", ["train", "data=book.txt", "until.steps=1"]),
        ("train", "torch", ["launch", "data=book.txt", "until.steps=1"]),
        ("train", "torch", ["generate", "tale", "Once"]),
        ("train", "torch", ["eval", "tale"]),
        ("train", "torch", ["export", "tale"]),
        ("train", "torch", ["import", ".", "--name", "other"]),
        ("data", "pyarrow", ["prepare", "a.parquet", "-o", "set", "--tokenizer", "300"]),
        ("data", "pyarrow", ["prepare", "book.txt.gz", "-o", "set", "--tokenizer", "300"]),
        ("data", "h5py", ["prepare", "a.hdf5", "-o", "set", "--pairs", "32", "--tokenizer", "."]),
        ("aws", "boto3", ["ps", "--runs", "s3://bucket/runs"]),
        ("gcp", "google-cloud-storage", ["prepare", "gs://bucket/text", "-o", "set", "--tokenizer", "300"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_a_missing_extra_is_named_in_one_line(
    core: Limited, tmp_path: Path, run: RunDir, book: Path, extra: str, package: str, command: list[str]
) -> None:
    assert run.exists()
    (tmp_path / "book.txt.gz").write_bytes(gzip.compress(book.read_bytes()))
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    (tmp_path / "a.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (ended,) = core.verbs(command, cwd=tmp_path)
    last = ended.err.splitlines()[-1]
    assert (ended.code, last) == (2, f"stoker: {package} is not installed. Run: pip install 'stoker[{extra}]'")


def test_every_optional_package_is_in_its_extra() -> None:
    text = PYPROJECT.read_text()
    for package, extra in EXTRAS.items():
        line = next(line for line in text.splitlines() if line.startswith(f"{extra} = ["))
        distribution = {"google": "google-cloud-storage", "botocore": "boto3"}.get(package, package)
        assert distribution in line, f"{extra} does not install {package}"


def test_the_image_of_a_script_has_no_packages_that_only_prepare_needs() -> None:
    names = {canonicalize_name(requirement.name) for requirement in needs(ScriptSpec(script="train.py"))}
    assert "pydantic" in names
    assert not {"numpy", "tokenizers", "huggingface-hub", "torch"} & names
