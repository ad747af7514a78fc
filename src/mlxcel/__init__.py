"""mlxcel: a model server for your own machine."""

__version__ = "0.1.0"
