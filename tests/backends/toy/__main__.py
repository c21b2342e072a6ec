"""`python -m tests.backends.toy …`: the `stoker` command with one more backend."""

import sys

from stoker.spec.on import SECTIONS
from tests.backends.toy.on import ToyOn

if __name__ == "__main__":
    SECTIONS["toy"] = ToyOn
    from stoker.backends import BACKENDS
    from stoker.cli.main import main

    BACKENDS["toy"] = "tests.backends.toy.backend"
    sys.exit(main())
