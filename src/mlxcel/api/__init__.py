"""HTTP front end: wire shapes in, engine requests out, and back. Knows nothing of the model framework."""
