import os
import random
from pathlib import Path

import pytest
import yaml

from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.run import RunSpec

LEAST = "data: ./books\nuntil: {steps: 10k}\n"


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def refusal(file: Path | None, *overrides: str) -> str:
    with pytest.raises(UserError) as error:
        load(file, overrides)
    assert "\n" not in str(error.value)
    assert error.value.remedy
    return str(error.value)


def test_default_preset_base_file_and_overrides_have_precedence_in_that_order(tmp_path: Path) -> None:
    write(tmp_path, "base: demo\noptim: {eps: 1e-7, clip: 2}\nbatch: {sequences: 8}\n", "under.yaml")
    file = write(
        tmp_path,
        "base: under.yaml\nmodel: {preset: gpt2-micro, dropout: 0.1}\ndata: x\noptim:\n  clip: 3\n  lr: 2e-3\n",
    )
    loaded = load(file, ["optim.lr=5e-3", "model.heads=4"])
    expected: dict[str, tuple[object, str]] = {
        "optim.weight_decay": (0.1, "default"),
        "optim.warmup": (20, "run preset demo"),
        "model.width": (768, "model preset gpt2-micro"),
        "optim.eps": (1e-7, f"{tmp_path}/under.yaml:2"),
        "batch.sequences": (8, f"{tmp_path}/under.yaml:3"),
        "optim.clip": (3.0, f"{file}:5"),
        "model.dropout": (0.1, f"{file}:2"),
        "optim.lr": (5e-3, "command line"),
        "model.heads": (4, "command line"),
    }
    for key, (value, origin) in expected.items():
        section, name = key.split(".")
        assert (getattr(getattr(loaded.spec, section), name), str(loaded.origins[key])) == (value, origin), key
    assert [str(setting.origin) for setting in loaded.settings["optim.lr"]] == [
        "command line",
        f"{file}:6",
        "run preset demo",
        "default",
    ]


def test_every_key_has_an_origin(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, LEAST), ["env.A=1"])
    leaves = {
        f"{section}.{key}" for section, value in loaded.spec if hasattr(value, "model_fields_set") for key, _ in value
    }
    assert leaves < set(loaded.origins)
    assert {"name", "seed", "precision", "env.A"} < set(loaded.origins)


def test_a_model_preset_on_the_command_line_is_applied_before_other_overrides_wherever_it_stands() -> None:
    spec = load(None, ["model.layers=2", "data=x", "model=gpt2-medium", "until.steps=1"]).spec
    assert (spec.model.layers, spec.model.width) == (2, 1024)


def test_a_base_on_the_command_line_replaces_the_base_of_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "base: demo\ndata: x\n")
    assert load(file, ["base=mistral-gpt2-small"]).spec.precision == "fp16"


def test_overrides_alone_make_a_run() -> None:
    spec = load(None, ["base=demo", "data=./books"]).spec
    assert spec.data.path == os.path.abspath("books")
    assert spec.name == "demo"


def test_yaml_1_2_scalars(tmp_path: Path) -> None:
    file = write(tmp_path, LEAST + "on: {workers: 2}\noptim: {lr: 1e-4}\nname: 2024-01-01\nenv: {no: yes, N: 007}\n")
    spec = load(file, []).spec
    assert (spec.on.workers, spec.optim.lr, spec.name) == (2, 1e-4, "2024-01-01")
    assert spec.env == {"no": "yes", "N": "007"}


def test_overrides_are_yaml_if_they_start_a_list_or_mapping_and_scalars_otherwise() -> None:
    overrides = ["optim.betas=[0.8, 0.9]", "data.tokenizer={train: 4k}", "until.time=90m", "data=*.txt", "env.X=1e5"]
    spec = load(None, [*overrides, "until.steps=1e3", "optim.clip=null"]).spec
    assert spec.optim.betas == (0.8, 0.9)
    assert spec.data.model_dump()["tokenizer"] == {"train": 4000}
    assert spec.data.path == os.path.abspath("*.txt")
    assert (spec.until.time, spec.until.steps, spec.optim.clip) == (5400, 1000, None)
    assert spec.env == {"X": "1e5"}


def test_a_part_of_a_value_can_be_set_by_its_own_key() -> None:
    spec = load(None, ["data=x", "until.steps=1", "data.tokenizer.train=300"]).spec
    assert spec.data.model_dump()["tokenizer"] == {"train": 300}


def test_paths_in_a_file_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "runs" / "words").mkdir(parents=True)
    text = "data: {path: [../books/*.txt, /data/x, 's3://b/x'], tokenizer: words}\nuntil: {steps: 1}\n"
    spec = load(write(tmp_path, text, "runs/a.yaml"), []).spec
    assert spec.data.path == [f"{tmp_path}/books/*.txt", "/data/x", "s3://b/x"]
    assert spec.data.tokenizer == f"{tmp_path}/runs/words"


def test_a_tokenizer_that_is_no_folder_is_a_name_on_the_hub(tmp_path: Path) -> None:
    assert load(write(tmp_path, LEAST), ["data.tokenizer=openai/gpt2"]).spec.data.tokenizer == "openai/gpt2"


def test_a_glob_survives_a_folder_with_brackets_in_its_name(tmp_path: Path) -> None:
    write(tmp_path / "a[1]", "text", "book.txt")
    file = write(tmp_path / "a[1]", "data: '*.txt'\nuntil: {steps: 1}\n")
    path = load(file, []).spec.data.path
    assert isinstance(path, str)
    assert [file.name for file in Path("/").glob(path[1:])] == ["book.txt"]


@pytest.mark.parametrize(
    ("file", "name"),
    [("mine.yaml", "mine"), ("war and peace/run.yaml", "war-and-peace"), ("x/stoker.yml", "x"), ("_é!.yaml", "run")],
)
def test_a_run_is_named_after_its_file_or_folder(tmp_path: Path, file: str, name: str) -> None:
    assert load(write(tmp_path, LEAST, file), []).spec.name == name


def test_a_name_is_not_inherited_from_a_base(tmp_path: Path) -> None:
    write(tmp_path, LEAST + "name: first\n", "first.yaml")
    assert load(write(tmp_path, "base: first.yaml\n", "second.yaml"), []).spec.name == "second"


def test_an_empty_section_sets_nothing(tmp_path: Path) -> None:
    assert load(write(tmp_path, LEAST + "batch:\n#  length: 3\n"), []).spec.batch.length == 256


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("batch:\n  sequnces: 3\n", ["mine.yaml:4", "batch.sequnces is unknown", "Did you mean batch.sequences?"]),
        ("sequences: 3\n", ["mine.yaml:3", "Did you mean batch.sequences?"]),
        ("modle: gpt2-small\n", ["modle is unknown", "Did you mean model?"]),
        ("zzz: 1\n", ["zzz is unknown", "takes name, model, data"]),
        ("batch: 3\n", ["mine.yaml:3", "batch is a section with keys", "batch.sequences"]),
        ("model: gpt2-smal\n", ["mine.yaml:3", "no model preset 'gpt2-smal'", "Did you mean gpt2-small?"]),
        ("model: [1]\n", ["mine.yaml:3", "model is neither"]),
        ("base: dmo\n", ["mine.yaml:3", "no run preset 'dmo'", "Did you mean demo?"]),
        ("base: gone.yaml\n", ["mine.yaml:3", "gone.yaml", "does not exist"]),
        ("base: 3\n", ["mine.yaml:3", "base is not a name"]),
        ("base: mine.yaml\n", ["its own base"]),
        ("optim: {lr: fast}\n", ["mine.yaml:3", 'optim.lr cannot be "fast"', "a number"]),
        ("optim: {lr: -1}\n", ["mine.yaml:3", "optim.lr is -1", "more than 0"]),
        ("optim: {lr: .inf}\n", ["optim.lr", "finite"]),
        ("optim: {betas: [0.9]}\n", ["optim.betas cannot be [0.9]", "two"]),
        ("optim: {warmup: 1.5}\n", ["optim.warmup", "neither a whole number nor a share"]),
        ("optim: {warmup: 100%}\n", ["optim.warmup", "less than 100%"]),
        ("optim: {schedule: cosin}\n", ["none of cosine, linear", "Did you mean cosine?"]),
        ("batch: {length: 10q}\n", ["batch.length", "'10q' is not a count", "10k"]),
        ("batch: {length: true}\n", ["batch.length", "true is not a number"]),
        ("batch: {length: 2k}\n", ["mine.yaml:3", "batch.length 2000 is more than model.context 1024"]),
        ("model: {width: 100}\n", ["mine.yaml:3", "width 100 is not a multiple of heads 12", "Set width to 96"]),
        ("eval: {every: -1}\n", ["eval.every is -1", "at least 0"]),
        ("on: {workers: many}\n", ["on.workers", "'many' is not a count", "or auto"]),
        ("compile: maybe\n", ['compile cannot be "maybe"', "auto, or true or false"]),
        ("checkpoint: {every: 0}\n", ["checkpoint.every is 0", "more than 0"]),
        ("checkpoint: {every: 10 parsecs}\n", ["checkpoint.every", "'10 parsecs' is not a"]),
        ("log: {tensorboard: 3}\n", ["log.tensorboard", "true or false"]),
        ("name: a b\n", ['name cannot be "a b"', "letters"]),
        ("env: {A: 1.5}\n", ["env.A cannot be 1.5", "text"]),
        ("seed: 1\nseed: 2\n", ["mine.yaml:4", "seed is set twice", "line 3"]),
        ("seed: [1\n", ["mine.yaml", "not YAML"]),
        ("\tseed: 1\n", ["mine.yaml:3", "not YAML"]),
        ("seed: !!python/object:os.system 1\n", ["mine.yaml:3", "not YAML"]),
        ("batch: &b {micro: *b}\n", ["mine.yaml:3", "alias contains itself"]),
        ("? [a]\n: 1\n", ["mine.yaml:3", "a key must be plain text"]),
    ],
)
def test_a_mistake_in_a_file_is_one_line_with_its_position_and_a_remedy(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    message = refusal(write(tmp_path, LEAST + text))
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["data=x"], ["until is missing", "until.steps=1000"]),
        (["until.steps=1"], ["data is missing", "data=./books"]),
        (["data=x", "until=1000"], ["command line: until is a section with keys", "until.steps"]),
        (["data=x", "until.patience=3"], ["it is empty", "{steps: 1000}", "steps_this_run"]),
        (["data=x", "until.time=2h"], ["optim.schedule cosine", "optim.horizon"]),
        (["data=x", "until.time=soon"], ["until.time", "'soon' is not a duration"]),
        (["data=[]", "until.steps=1"], ["data.path cannot be []"]),
        (["data=x", "until.steps=1", "data.tokenizer={trian: 3}"], ["data.tokenizer.trian is unknown", "train"]),
        (["data=x", "until.steps=1", "data.tokenizer.train=3"], ["data.tokenizer.train is 3", "at least 257"]),
        (["data=x", "until.steps=1", "optim.betas=[0.9"], ["[0.9 is not YAML"]),
        (["data=x", "--steps"], ["'--steps' is not of the form key=value"]),
        (["data=x", "optim.rl=1"], ["optim.rl is unknown", "Did you mean optim.lr?"]),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_with_a_remedy(overrides: list[str], parts: list[str]) -> None:
    message = refusal(None, *overrides)
    assert [part for part in parts if part not in message] == [], message


def test_a_file_that_cannot_be_read_is_one_line_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("name: é".encode("latin-1"))
    (tmp_path / "zero.yaml").write_bytes(b"a: \x00")
    assert "there is no file" in refusal(tmp_path / "none.yaml")
    assert "is a folder" in refusal(tmp_path)
    assert "not UTF-8" in refusal(tmp_path / "latin.yaml")
    assert "not YAML" in refusal(tmp_path / "zero.yaml")
    assert "has no keys" in refusal(write(tmp_path, "- a\n- b\n"))
    assert "data is missing" in refusal(write(tmp_path, ""))


def test_a_circle_of_bases_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "base: b.yaml\n", "a.yaml")
    write(tmp_path, "base: ./a.yaml\n", "b.yaml")
    assert "its own base" in refusal(tmp_path / "a.yaml")


def test_any_spec_written_and_loaded_is_the_same(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for number in range(100):
        spec = any_spec(draw)
        text = yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        loaded = load(write(tmp_path, text, f"{number}.yaml"), []).spec
        assert loaded == spec
        assert loaded.model_dump_json() == spec.model_dump_json()


def any_spec(draw: random.Random) -> RunSpec:
    choose = draw.choice
    stages = [(draw.randint(1, 9), draw.randint(10, 99)) for _ in range(draw.randint(1, 4))]
    return RunSpec.model_validate(
        {
            "name": choose(["a", "on", "no", "1.5-x", "2024", "x" * 100]),
            "model": {"heads": 2, "width": 2 * draw.randint(1, 99), "dropout": draw.random(), "context": 4096},
            "data": {
                "path": choose(["/a/*.txt", ["/a", "/é ü: x"], "s3://b/c#d"]),
                "tokenizer": choose([None, "gpt2", "/t", {"train": draw.randint(257, 10**6)}]),
                "field": choose(["text", "null", "yes", "12", "a: b", "1:30"]),
                "validation": draw.random(),
            },
            "batch": {"sequences": draw.randint(1, 10**12), "micro": choose([None, 3])},
            "optim": {
                "lr": draw.random() * 10.0 ** -draw.randint(0, 12) + 1e-300,
                "warmup": choose([0, 1, 2000, 0.0, draw.random()]),
                "decay": choose([None, 7, 0.5]),
                "schedule": "constant",
                "betas": (draw.random(), draw.random()),
                "clip": choose([None, 0.5, 1]),
            },
            "until": {"time": draw.random() * 1e6 + 1e-9, "steps": choose([None, "10k"])},
            "compile": choose(["auto", True, False]),
            "checkpoint": {
                "every": choose(["auto", 500, "10m", 0.25, stages]),
                "resume": choose(["auto", 0, 70]),
            },
            "on": {"workers": choose(["auto", 4])},
            "seed": draw.randrange(2**63),
            "env": choose([{}, {"on": "off", "A": "1", "B": "", "C": "1.50", "D": "~"}]),
        }
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.upcast_attention=true", "upcast_attention has no effect on the family bert"),
        ("batch.length=4", "et batch.length to 8 or more"),
        ("log.attention=true", "log.attention is not supported for bert. Set log.attention to false"),
        ("objective.rate=100%", "objective.rate"),
        ("objective.masking=never", "objective.masking"),
    ],
)
def test_settings_that_bert_does_not_support_are_refused(override: str, message: str) -> None:
    assert message in refusal(None, "data=.", "model=bert-tiny", "until.steps=1", "batch.length=64", override)


def test_a_limit_of_steps_per_launch_needs_a_schedule_with_a_known_end() -> None:
    message = refusal(None, "data=.", "until.steps_this_run=5")
    assert "until has only time or steps_this_run" in message
    assert "optim.horizon" in message
    load(None, ["data=.", "until.steps_this_run=5", "optim.horizon=100"])
