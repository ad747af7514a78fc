"""Programs that measure a running server over HTTP. Run them with `python -m benchmarks.<name>`."""
