"""`python -m mlxcel.cli` is `mlxcel`."""

import sys

from mlxcel.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
