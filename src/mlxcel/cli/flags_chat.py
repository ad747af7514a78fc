"""Flags for reasoning, and for what conversations become."""

from __future__ import annotations

from mlxcel.cli.flag import row
from mlxcel.cli.values import SWITCH, choice, integer, on_off_auto, reasoning_format, text

CHAT = "Chat and reasoning"

CHAT_FLAGS = (
    row(
        CHAT,
        "--reasoning-format",
        choice("auto", "deepseek", "deepseek-legacy", "none"),
        "chat.reasoning_format",
        "Where answers show their reasoning: in reasoning_content (deepseek, auto), in the content with its markers "
        "(none), or in both (deepseek-legacy)",
        default="auto",
        env="LLAMA_ARG_THINK",
        convert=reasoning_format,
    ),
    row(
        CHAT,
        "--reasoning-alias-field",
        choice("none", "reasoning"),
        "chat.reasoning_alias",
        "A second name of the field reasoning_content",
        default="reasoning",
        env="MLXCEL_REASONING_ALIAS_FIELD",
    ),
    row(
        CHAT,
        "--reasoning-budget",
        integer(least=-1),
        "chat.reasoning_budget",
        "Tokens that the reasoning of an answer may have; 0 for none, -1 for any number",
        default="-1",
        env="LLAMA_ARG_THINK_BUDGET LLAMA_ARG_REASONING_BUDGET",
    ),
    row(
        CHAT,
        "--reasoning -rea",
        choice("on", "off", "auto"),
        "chat.reasoning",
        "Sets the template variable enable_thinking; auto leaves it to the template",
        default="auto",
        env="LLAMA_ARG_REASONING",
        convert=on_off_auto,
    ),
    row(
        CHAT,
        "--reasoning-effort",
        text("NAME"),
        "chat.reasoning_effort",
        "The template variable of that name, and enable_thinking; a request's reasoning_effort wins",
        env="LLAMA_ARG_REASONING_EFFORT",
    ),
    row(
        CHAT,
        "--reasoning-preserve",
        SWITCH,
        "chat.reasoning_preserve",
        "Keep the reasoning of earlier answers in the prompt; sets preserve_thinking and preserve_reasoning",
        default="off",
        env="LLAMA_ARG_REASONING_PRESERVE",
    ),
    row(
        CHAT,
        "--skip-chat-parsing",
        SWITCH,
        "chat.skip_parsing",
        "Pass answers on as the model writes them",
        default="off",
        env="LLAMA_ARG_SKIP_CHAT_PARSING",
        off="--no-skip-chat-parsing",
    ),
    row(
        CHAT,
        "--prefill-assistant",
        SWITCH,
        "chat.prefill_assistant",
        "A last message of the assistant is the beginning of the answer; off, it is a turn that is complete",
        default="on",
        env="LLAMA_ARG_PREFILL_ASSISTANT",
        off="--no-prefill-assistant",
    ),
)
