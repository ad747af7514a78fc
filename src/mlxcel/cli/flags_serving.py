"""Flags for the model, the network and the log."""

from __future__ import annotations

from mlxcel.cli.flag import Flag, row
from mlxcel.cli.values import (
    SWITCH,
    api_prefix,
    choice,
    integer,
    keys_of_file,
    number,
    path,
    ping_interval,
    text,
    words,
)
from mlxcel.models.catalogue import DEFAULT_MODEL

MODEL = "Model"
NETWORK = "Network and access"
OPERATIONS = "Operations"
LOGGING = "Logging"
GENERAL = "General"


def store_root(names: str) -> Flag:
    """The flag for the model store, which is spelled differently by the server and by the other commands."""
    return row(
        MODEL,
        names,
        path("DIR"),
        "model.store_root",
        "Where downloaded models are kept",
        default="$MLXCEL_CACHE_DIR/models, else ~/.cache/mlxcel/models",
        env="MLXCEL_MODELS_DIR",
    )


HUB_FLAGS = (
    row(
        MODEL,
        "--hf-token -hft",
        text("TOKEN"),
        "model.hf_token",
        "Token for the model hub",
        env="HF_TOKEN HUGGING_FACE_HUB_TOKEN",
        secret=True,
    ),
    row(
        MODEL,
        "--revision",
        text("NAME"),
        "model.revision",
        "Branch, tag or commit on the model hub",
        default="main",
    ),
    row(
        MODEL,
        "--offline",
        SWITCH,
        "model.offline",
        "Never download anything",
        default="off",
        env="LLAMA_ARG_OFFLINE",
    ),
)

DEVICE_FLAGS = (
    row(
        MODEL,
        "--device -dev",
        choice("auto", "gpu", "metal", "cpu"),
        "model.device",
        "Where the model runs; auto takes a GPU when there is one",
        default="auto",
        env="LLAMA_ARG_DEVICE MLXCEL_DEVICE",
    ),
    row(
        MODEL,
        "--threads -t",
        integer(most=1024),
        "model.threads",
        "Threads of the native CPU kernels; 0 or less for one a processor",
        default="one a processor",
        env="LLAMA_ARG_THREADS",
        convert=lambda threads: threads if threads > 0 else None,
    ),
    row(
        MODEL,
        "--cpu-precision",
        choice("default", "fast", "exact"),
        "model.cpu_precision",
        "Activations in the native CPU kernels: 16-bit integers (12-bit on AMX), 8-bit integers, or float32",
        default="default",
        env="MLXCEL_CPU_PRECISION",
    ),
)

MODEL_FLAGS = (
    row(
        MODEL,
        "--model -m",
        text("MODEL"),
        "model.model",
        f"Catalogue name ({DEFAULT_MODEL}), checkpoint directory, .gguf file, owner/name or bare name",
        env="LLAMA_ARG_MODEL",
    ),
    # Below --model in the table, so that it wins.
    row(
        MODEL,
        "--hf-repo -hf -hfr",
        text("OWNER/NAME"),
        "model.model",
        "The same as --model, and stronger",
        env="LLAMA_ARG_HF_REPO",
    ),
    *HUB_FLAGS,
    store_root("--model-store-root"),
    *DEVICE_FLAGS,
    row(
        MODEL,
        "--alias -a",
        words("NAME,..."),
        "model.alias",
        "Names the API reports; sorted, the first is the served id",
        default="the model's own name",
        env="LLAMA_ARG_ALIAS",
        convert=lambda names: tuple(sorted(set(names))),
    ),
    row(
        MODEL,
        "--warmup",
        SWITCH,
        "model.warmup",
        "Run one token through the model before reporting ready",
        default="on",
        off="--no-warmup",
    ),
)

NETWORK_FLAGS = (
    row(
        NETWORK,
        "--host",
        text("ADDRESS"),
        "network.host",
        "Address to listen on; a name that ends in .sock is a Unix socket",
        default="127.0.0.1",
        env="LLAMA_ARG_HOST",
    ),
    row(
        NETWORK,
        "--port",
        integer("PORT", least=0, most=65535),
        "network.port",
        "Port to listen on; 0 picks a free one",
        default="8080",
        env="LLAMA_ARG_PORT",
    ),
    row(
        NETWORK,
        "--api-key",
        words("KEY,..."),
        "network.api_keys",
        "Key that requests must carry; repeatable, and the variable adds to it",
        env="LLAMA_API_KEY",
        adds=True,
        secret=True,
    ),
    row(
        NETWORK,
        "--api-key-file",
        path(),
        "network.api_keys",
        "File with more keys, one a line",
        env="LLAMA_ARG_API_KEY_FILE",
        convert=keys_of_file,
        adds=True,
    ),
    row(
        NETWORK,
        "--api-prefix",
        text("PATH"),
        "network.api_prefix",
        "Path in front of every route",
        env="LLAMA_ARG_API_PREFIX",
        convert=api_prefix,
    ),
    row(
        NETWORK,
        "--timeout -to",
        integer("SECONDS", least=1),
        "network.timeout",
        "Time a connection may wait for its client: to ask, to finish asking, to take the answer",
        default="3600",
        env="LLAMA_ARG_TIMEOUT",
    ),
    row(
        NETWORK,
        "--sse-ping-interval",
        number("SECONDS", least=-1),
        "network.sse_ping_interval",
        "Time between keep-alive comments in a stream; -1 for none",
        default="30",
        env="LLAMA_ARG_SSE_PING_INTERVAL",
        convert=ping_interval,
    ),
    row(
        NETWORK,
        "--ssl-cert-file",
        path(),
        "network.ssl_cert_file",
        "PEM certificate for HTTPS; needs --ssl-key-file",
        env="LLAMA_ARG_SSL_CERT_FILE",
    ),
    row(
        NETWORK,
        "--ssl-key-file",
        path(),
        "network.ssl_key_file",
        "PEM private key for HTTPS, without a passphrase; needs --ssl-cert-file",
        env="LLAMA_ARG_SSL_KEY_FILE",
    ),
    row(
        NETWORK,
        "--cors-origins",
        words("ORIGIN,..."),
        "network.cors_origins",
        "Origins that browsers may call from: *, localhost, or a list",
        default="*",
        env="LLAMA_ARG_CORS_ORIGINS",
    ),
    row(
        NETWORK,
        "--cors-methods",
        text("LIST"),
        "network.cors_methods",
        "Methods browsers may use",
        default="GET, POST, OPTIONS",
        env="LLAMA_ARG_CORS_METHODS",
    ),
    row(
        NETWORK,
        "--cors-headers",
        text("LIST"),
        "network.cors_headers",
        "Request headers browsers may send",
        default="*",
        env="LLAMA_ARG_CORS_HEADERS",
    ),
    row(
        NETWORK,
        "--cors-credentials",
        SWITCH,
        "network.cors_credentials",
        "Let browsers send credentials",
        default="off",
        env="LLAMA_ARG_CORS_CREDENTIALS",
        off="--no-cors-credentials",
    ),
)

OPERATIONS_FLAGS = (
    row(
        OPERATIONS,
        "--metrics",
        SWITCH,
        "network.metrics",
        "Serve numbers for Prometheus at /metrics",
        default="off",
        env="LLAMA_ARG_ENDPOINT_METRICS",
    ),
    row(
        OPERATIONS,
        "--metrics-port",
        integer("PORT", least=0, most=65535),
        "network.metrics",
        "The same as --metrics: /metrics is served beside the other paths, whatever the number",
        convert=lambda port: True,
    ),
    row(
        OPERATIONS,
        "--slots",
        SWITCH,
        "network.slots",
        "Serve the state of each slot at /slots",
        default="on",
        env="LLAMA_ARG_ENDPOINT_SLOTS",
        off="--no-slots",
    ),
)

LOG_FLAGS = (
    row(
        LOGGING,
        "--verbose -v --log-verbose",
        SWITCH,
        "log.verbosity",
        "Everything, unless --verbosity says how much",
        default="off",
        convert=lambda verbose: 5 if verbose else 3,
    ),
    row(
        LOGGING,
        "--verbosity -lv --log-verbosity",
        integer(least=0),
        "log.verbosity",
        "0 and 1 errors, 2 warnings, 3 information, 4 and more everything",
        default="3",
        env="LLAMA_ARG_LOG_VERBOSITY LLAMA_LOG_VERBOSITY",
    ),
    row(
        LOGGING,
        "--log-file",
        path(),
        "log.file",
        "Also write the log to this file, readable by its owner alone",
        env="LLAMA_ARG_LOG_FILE LLAMA_LOG_FILE",
    ),
    row(LOGGING, "--log-disable", SWITCH, "log.disable", "No log at all", default="off", env="LLAMA_ARG_LOG_DISABLE"),
    row(
        LOGGING,
        "--log-colors",
        choice("on", "off", "auto"),
        "log.colors",
        "Colored lines; auto is on in a terminal",
        default="auto",
        env="LLAMA_ARG_LOG_COLORS LLAMA_LOG_COLORS",
    ),
    row(
        LOGGING,
        "--log-prefix",
        SWITCH,
        "log.prefix",
        "The level in front of every line",
        default="on",
        env="LLAMA_ARG_LOG_PREFIX LLAMA_LOG_PREFIX",
        off="--no-log-prefix",
    ),
    row(
        LOGGING,
        "--log-timestamps",
        SWITCH,
        "log.timestamps",
        "The time in front of every line",
        default="on",
        env="LLAMA_ARG_LOG_TIMESTAMPS LLAMA_LOG_TIMESTAMPS",
        off="--no-log-timestamps",
    ),
)

GENERAL_FLAGS = (
    row(GENERAL, "--help -h", SWITCH, "", "Print this text and exit"),
    row(GENERAL, "--version", SWITCH, "", "Print the version and exit"),
)
