"""Flags for context, scheduling, sampling and the chat template."""

from __future__ import annotations

import operator

from mlxcel.cli.flag import row
from mlxcel.cli.values import (
    OBJECT,
    SWITCH,
    auto_parallel,
    budget,
    integer,
    number,
    path,
    read_text,
    seed,
    template_source,
    text,
)

ENGINE = "Context and scheduling"
SAMPLING = "Sampling defaults"
TEMPLATE = "Chat template"

CONTEXT_FLAGS = (
    row(
        ENGINE,
        "--ctx-size -c",
        integer(least=0),
        "engine.ctx_size",
        "Tokens of context, shared by all slots; 0 gives every slot the model's window",
        default="0",
        env="LLAMA_ARG_CTX_SIZE",
    ),
    row(
        ENGINE,
        "--predict -n --n-predict",
        integer(least=-1),
        "engine.n_predict",
        "Tokens generated when a request sets no limit; -1 for the rest of the context",
        default="-1",
        env="LLAMA_ARG_N_PREDICT",
        convert=budget,
    ),
    row(
        ENGINE,
        "--prefill-chunk-size",
        integer(least=0),
        "engine.prefill_chunk_size",
        "Prompt tokens evaluated in one step; 0 for the whole prompt",
        default="2048 on a GPU, 512 on a CPU",
        env="MLXCEL_PREFILL_CHUNK",
    ),
)

ENGINE_FLAGS = (
    *CONTEXT_FLAGS,
    row(
        ENGINE,
        "--parallel -np",
        integer(least=-1),
        "engine.parallel",
        "Slots: sequences decoded together; -1 for 4",
        default="4",
        env="LLAMA_ARG_N_PARALLEL",
        convert=auto_parallel,
    ),
    row(
        ENGINE,
        "--max-batch-size",
        integer(least=1),
        "engine.max_batch_size",
        "Widest decode batch",
        default="--parallel",
    ),
    row(
        ENGINE,
        "--max-queue-depth",
        integer(least=0),
        "engine.max_queue_depth",
        "Requests that may wait for a slot before the answer is 503",
        default="32",
    ),
    row(
        ENGINE,
        "--prefill-grant-interval",
        integer(least=0),
        "engine.prefill_grant_interval",
        "Decode steps between two prompt steps; 0 to decode until the batch is empty",
        default="16",
        env="MLXCEL_PREFILL_GRANT_INTERVAL",
    ),
    row(
        ENGINE,
        "--cont-batching -cb",
        SWITCH,
        "engine.no_cont_batching",
        "Decode several sequences together; off is one at a time",
        default="on",
        env="LLAMA_ARG_CONT_BATCHING",
        off="--no-cont-batching -nocb",
        convert=operator.not_,
    ),
)

SAMPLING_FLAGS = (
    row(
        SAMPLING,
        "--temp --temperature",
        number(least=0),
        "sampling.temperature",
        "Temperature; 0 takes the most likely token",
        default="0.8",
    ),
    row(
        SAMPLING,
        "--top-k",
        integer(least=0),
        "sampling.top_k",
        "Keep the N most likely tokens; 0 keeps all",
        default="40",
        env="LLAMA_ARG_TOP_K",
    ),
    row(
        SAMPLING,
        "--top-p",
        number(least=0, most=1),
        "sampling.top_p",
        "Keep the most likely tokens up to this probability; 1 keeps all",
        default="0.95",
    ),
    row(
        SAMPLING,
        "--min-p",
        number(least=0, most=1),
        "sampling.min_p",
        "Keep tokens at least this times as likely as the best; 0 keeps all",
        default="0.05",
    ),
    row(
        SAMPLING,
        "--repeat-penalty",
        number(least=0.01),
        "sampling.repetition_penalty",
        "Penalty on tokens of the window below; 1 is off",
        default="1",
    ),
    row(
        SAMPLING,
        "--repeat-last-n",
        integer(least=-1),
        "sampling.repetition_context_size",
        "Window of the repetition penalty; 0 is off, -1 is everything",
        default="64",
    ),
    row(
        SAMPLING,
        "--frequency-penalty",
        number(least=-2, most=2),
        "sampling.frequency_penalty",
        "Subtracted for every time a token was generated",
        default="0",
    ),
    row(
        SAMPLING,
        "--presence-penalty",
        number(least=-2, most=2),
        "sampling.presence_penalty",
        "Subtracted once a token was generated",
        default="0",
    ),
    row(
        SAMPLING,
        "--seed -s",
        integer(most=(1 << 64) - 1),
        "sampling.seed",
        "Seed of requests that name none; negative draws a new one each time",
        default="-1",
        convert=seed,
    ),
)

TEMPLATE_FLAGS = (
    row(
        TEMPLATE,
        "--chat-template",
        text("JINJA"),
        "model.chat_template",
        "Text of a template that replaces the model's own",
        env="LLAMA_ARG_CHAT_TEMPLATE",
        convert=template_source,
    ),
    row(
        TEMPLATE,
        "--chat-template-file",
        path(),
        "model.chat_template",
        "File with a template that replaces the model's own",
        env="LLAMA_ARG_CHAT_TEMPLATE_FILE",
        convert=read_text,
    ),
    row(
        TEMPLATE,
        "--chat-template-kwargs",
        OBJECT,
        "model.chat_template_kwargs",
        "Template variables of requests that do not set them",
        default="{}",
        env="LLAMA_ARG_CHAT_TEMPLATE_KWARGS",
    ),
)
