"""`python -m stoker` is `stoker`."""

import sys

from stoker.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
