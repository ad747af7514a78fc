"""The OpenAI wire format: chat completions and text completions."""
