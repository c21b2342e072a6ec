"""`stoker explain`: where a value of a run file comes from."""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from stoker.cli.arguments import file_and_overrides
from stoker.cli.console import print_table
from stoker.spec.keys import doc, flat, keys
from stoker.spec.load import Loaded, load
from stoker.spec.problems import unknown_key


def explain_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="a key such as optim.lr, or a section such as optim")
    parser.add_argument("arguments", metavar="RUN.yaml [key=value …]", nargs="+", help="the run file, and overrides")
    parser.add_argument("--json", action="store_true", help="print JSON")


def explain(args: Namespace) -> int:
    key: str = args.key
    file, overrides = file_and_overrides(args.arguments, verb=f"explain {key}")
    loaded = load(Path(file) if file else None, overrides)
    matches = [name for name in loaded.settings if name == key or name.startswith(f"{key}.")]
    if not matches and key not in keys():
        raise unknown_key(key, "stoker explain")
    if args.json:
        print(json.dumps([_as_json(name, loaded) for name in matches], indent=2))
    elif matches == [key]:
        print(_paragraph(key, loaded))
    else:
        print(doc(key))
        values = flat(loaded.spec)
        rows = [(name, _show(values[name]), str(loaded.origins[name])) for name in matches]
        print_table(("key", "value", "from"), rows)
    return 0


def _as_json(key: str, loaded: Loaded) -> dict[str, object]:
    return {
        "key": key,
        "value": flat(loaded.spec)[key],
        "origin": str(loaded.origins[key]),
        "settings": [{"value": setting.value, "origin": str(setting.origin)} for setting in loaded.settings[key]],
        "doc": doc(key),
    }


def _paragraph(key: str, loaded: Loaded) -> str:
    effective, *overridden = loaded.settings[key]
    lines = [f"{key} = {_show(flat(loaded.spec)[key])}", f"  from {effective.origin}"]
    lines += [f"  overrides {_show(setting.value)} from {setting.origin}" for setting in overridden]
    return "\n".join([*lines, f"  {doc(key)}"])


def _show(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
