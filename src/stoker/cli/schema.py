"""`stoker schema`: JSON Schema of a run file, for editors."""

import json
from argparse import ArgumentParser, Namespace

from stoker.spec.schema import run_schema


def schema_arguments(parser: ArgumentParser) -> None:
    parser.epilog = "For your editor, begin a run file with: # yaml-language-server: $schema=FILE"


def schema(args: Namespace) -> int:
    del args
    print(json.dumps(run_schema(), indent=2))
    return 0
