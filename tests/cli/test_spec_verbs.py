import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.spec.estimate import parameters
from stoker.spec.model import Model

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCS = Path(__file__).parents[2] / "docs"
FIGURE = re.compile(r"\b([\d.]+)([MB])\b( parameters)?(?: with a vocabulary of ([\d,]+))?")


def test_init_writes_a_run_file_that_explain_understands(command, tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("It was a dark and stormy night. " * 1000)
    created = command("init", "books")
    assert created.returncode == 0, created.stderr
    assert "next: stoker train run.yaml" in created.stdout
    text = (tmp_path / "run.yaml").read_text()
    assert len(text.splitlines()) <= 40
    explained = command("explain", "data.path", "run.yaml")
    assert explained.stdout.startswith(f'data.path = "{tmp_path}/books"\n  from run.yaml:')
    second = command("init", "books")
    assert second.returncode == 2
    assert "run.yaml exists already" in second.stderr
    assert (tmp_path / "run.yaml").read_text() == text


def test_explain_names_the_effective_value_and_then_all_that_it_overrides(command, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("base: demo\ndata: .\noptim: {lr: 2e-3}\n")
    lines = command("explain", "optim.lr", "run.yaml", "optim.lr=3e-3").stdout.splitlines()
    assert lines == [
        "optim.lr = 0.003",
        "  from command line",
        "  overrides 0.002 from run.yaml:3",
        "  overrides 0.001 from run preset demo",
        "  overrides 0.0006 from default",
        "  Highest learning rate.",
    ]
    records = json.loads(command("explain", "optim.lr", "run.yaml", "--json").stdout)
    assert [setting["origin"] for setting in records[0]["settings"]] == ["run.yaml:3", "run preset demo", "default"]
    section = command("explain", "batch", "run.yaml").stdout
    assert "batch.sequences  16" in section
    wrong = command("explain", "optim.rl", "run.yaml")
    assert (wrong.returncode, "Did you mean optim.lr?" in wrong.stderr) == (2, True)


def test_explain_takes_overrides_without_a_run_file_and_before_it(command, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("base: demo\ndata: .\n")
    for arguments in (["optim.lr=3e-3", "run.yaml"], ["base=demo", "data=.", "optim.lr=3e-3"]):
        assert command("explain", "optim.lr", *arguments).stdout.startswith("optim.lr = 0.003\n"), arguments
    note = "x" * 5000  # longer than a file name may be
    assert command("explain", "optim.lr", f"env.NOTE={note}", "run.yaml").returncode == 0
    assert "an argument is empty" in command("explain", "optim.lr", "").stderr


def test_presets_are_listed_and_shown(command) -> None:
    table = command("presets").stdout
    assert "gpt2-xl             model  1,558M" in table
    listed = json.loads(command("presets", "--json").stdout)
    assert {"name", "kind", "parameters", "vocab", "description", "values"} == set(listed[0])
    assert "layers: 12" in command("presets", "gpt2-small").stdout
    wrong = command("presets", "gpt3")
    assert wrong.returncode == 2
    assert len(wrong.stderr.splitlines()) == 1


def test_the_parameters_of_a_preset_agree_with_its_description_and_with_the_guide(command) -> None:
    listed = [preset for preset in json.loads(command("presets", "--json").stdout) if preset["kind"] == "model"]
    guide = (DOCS / "guides" / "llama.md").read_text()
    for preset in listed:
        shape = Model.model_validate(preset["values"])
        for number, unit, exact, vocab in FIGURE.findall(preset["description"]):
            size = parameters(shape, int(vocab.replace(",", ""))) if vocab else preset["parameters"]
            scale = {"M": 1e6, "B": 1e9}[unit]
            if exact:
                assert f"{size / scale:.0f}" == number, preset["name"]
            else:  # part of a name, such as Llama 3.2 1B
                assert size == pytest.approx(float(number) * scale, rel=0.25), preset["name"]
        for number in re.findall(rf"`{preset['name']}` \| ([\d.]+)B \|", guide):
            assert f"{preset['parameters'] / 1e9:.3g}" == f"{float(number):.3g}", preset["name"]
    sizes = {preset["name"]: preset["parameters"] for preset in listed}
    assert (sizes["llama3.2-1b"], sizes["bert-base"], sizes["gpt2-small"]) == (1_235_814_400, 110_106_428, 124_439_808)


def test_schema_is_json(command) -> None:
    assert json.loads(command("schema").stdout)["title"] == "Stoker run file"


def test_the_verbs_about_run_files_need_only_the_core_install(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text " * 1000)
    program = """
import sys
from stoker.cli.main import main
for line in ("init a.txt", "explain name run.yaml", "presets", "schema"):
    assert main(line.split()) == 0
print(sorted({"numpy", "torch", "pyarrow", "tokenizers"} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "[]\n")


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*/run.yaml")), ids=lambda path: path.parent.name)
def test_every_example_is_short_and_loads(command, example: Path) -> None:
    assert len(example.read_text().splitlines()) <= 25
    explained = command("explain", "name", str(example))
    assert explained.stdout.startswith("name = "), explained.stderr
