"""`python -m mlxcel.cli` is `mlxcel`."""

from mlxcel.cli.main import console

if __name__ == "__main__":
    console()
