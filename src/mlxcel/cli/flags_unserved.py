"""Flags, most of them of llama.cpp's server, that are known but not served by this version.

A value that changes nothing is accepted, so that existing command lines and container files keep working; any other
value stops the start before anything is downloaded.
"""

from __future__ import annotations

from mlxcel.cli.unserved import Group, Row
from mlxcel.config import SAMPLER_LETTERS, SAMPLERS

_LEAVE_OUT = "leave it out"
_PLACEMENT = Group(
    "Processor and GPU placement",
    "the whole model runs on one device, and its runtime places threads and memory",
    _LEAVE_OUT,
    (
        Row("--threads-batch -tb", "N", "<=0", "LLAMA_ARG_THREADS_BATCH"),
        Row("--threads-http", "N", "<=0", "LLAMA_ARG_THREADS_HTTP"),
        Row("--cpu-mask -C", "MASK"),
        Row("--cpu-range -Cr", "LO-HI"),
        Row("--cpu-strict", "0|1", "0"),
        Row("--cpu-mask-batch -Cb", "MASK"),
        Row("--cpu-range-batch -Crb", "LO-HI"),
        Row("--cpu-strict-batch", "0|1", "0"),
        Row("--prio", "N", "0"),
        Row("--prio-batch", "N", "0"),
        Row("--poll", "N", "50"),
        Row("--poll-batch", "N", "50"),
        Row("--numa", "TYPE", "", "LLAMA_ARG_NUMA"),
        Row("--gpu-layers -ngl --n-gpu-layers", "N", "all auto -1", "LLAMA_ARG_N_GPU_LAYERS"),
        Row("--split-mode -sm", "MODE", "none", "LLAMA_ARG_SPLIT_MODE"),
        Row("--tensor-split -ts", "LIST", "", "LLAMA_ARG_TENSOR_SPLIT"),
        Row("--main-gpu -mg", "N", "0", "LLAMA_ARG_MAIN_GPU"),
        Row("--list-devices"),
        Row("--rpc", "LIST", "", "LLAMA_ARG_RPC"),
        Row("--flash-attn -fa", "on|off|auto", "on auto 1 true enabled", "LLAMA_ARG_FLASH_ATTN"),
        Row("--mmap | --no-mmap", "", "on", "LLAMA_ARG_MMAP"),
        Row("--mlock", "", "off", "LLAMA_ARG_MLOCK"),
        Row("--direct-io -dio | --no-direct-io -ndio", "", "off", "LLAMA_ARG_DIO"),
        Row("--kv-offload -kvo | --no-kv-offload -nkvo", "", "on", "LLAMA_ARG_KV_OFFLOAD"),
        Row("--op-offload | --no-op-offload", "", "on"),
        Row("--repack | --no-repack", "", "on", "LLAMA_ARG_REPACK"),
        Row("--no-host", "", "off", "LLAMA_ARG_NO_HOST"),
        Row("--fit", "on|off", "off", "LLAMA_ARG_FIT"),
        Row("--check-tensors", "", "off"),
        Row("--override-kv", "LIST"),
        Row("--override-tensor -ot", "LIST"),
        Row("--cpu-moe -cmoe", "", "off", "LLAMA_ARG_CPU_MOE"),
        Row("--n-cpu-moe -ncmoe", "N", "0", "LLAMA_ARG_N_CPU_MOE"),
    ),
)

_SOURCES = Group(
    "Model sources",
    "models are named in one way only",
    "give --model a catalogue name, a checkpoint directory, a .gguf file or owner/name",
    (
        Row("--hf-file -hff", "FILE", "", "LLAMA_ARG_HF_FILE"),
        Row("--hf-repo-v -hfv -hfrv", "REPO", "", "LLAMA_ARG_HF_REPO_V"),
        Row("--hf-file-v -hffv", "FILE", "", "LLAMA_ARG_HF_FILE_V"),
        Row("--model-url -mu", "URL", "", "LLAMA_ARG_MODEL_URL"),
        Row("--docker-repo -dr", "REPO", "", "LLAMA_ARG_DOCKER_REPO"),
        Row("--model-vocoder -mv", "FILE"),
        *(
            Row(f"--{name}-default")
            for name in (
                "embd-gemma",
                "fim-qwen-1.5b",
                "fim-qwen-3b",
                "fim-qwen-7b",
                "fim-qwen-30b",
                "gpt-oss-20b",
                "gpt-oss-120b",
                "vision-gemma-4b",
                "vision-gemma-12b",
                "tts-oute",
            )
        ),
        Row("--fim-qwen-7b-spec"),
        Row("--fim-qwen-14b-spec"),
    ),
)

_WEIGHTS = Group(
    "Adapters and load-time changes",
    "weights are used as the checkpoint has them",
    "give --model a checkpoint with the change already in it",
    (
        Row("--surgery", "FILE", "", "MLXCEL_SURGERY"),
        Row("--lora --adapter", "LIST"),
        Row("--lora-scaled", "LIST"),
        Row("--lora-init-without-apply", "", "off"),
        Row("--lora-fuse", "", "off"),
        Row("--control-vector", "FILE"),
        Row("--control-vector-scaled", "LIST"),
        Row("--control-vector-layer-range", "START END", "*", values=2),
        Row("--rope-scaling", "TYPE", "", "LLAMA_ARG_ROPE_SCALING_TYPE"),
        Row("--rope-scale", "X", "", "LLAMA_ARG_ROPE_SCALE"),
        Row("--rope-freq-scale", "X", "", "LLAMA_ARG_ROPE_FREQ_SCALE"),
        Row("--rope-freq-base", "X", "0", "LLAMA_ARG_ROPE_FREQ_BASE"),
        Row("--yarn-orig-ctx", "N", "0", "LLAMA_ARG_YARN_ORIG_CTX"),
        Row("--yarn-ext-factor", "X", "-1", "LLAMA_ARG_YARN_EXT_FACTOR"),
        Row("--yarn-attn-factor", "X", "-1", "LLAMA_ARG_YARN_ATTN_FACTOR"),
        Row("--yarn-beta-slow", "X", "-1", "LLAMA_ARG_YARN_BETA_SLOW"),
        Row("--yarn-beta-fast", "X", "-1", "LLAMA_ARG_YARN_BETA_FAST"),
    ),
)

_SIDE_MODELS = Group(
    "Embeddings, reranking, audio and images",
    "this version serves text generation only",
    _LEAVE_OUT,
    (
        Row("--embedding-model", "MODEL", "", "LLAMA_ARG_EMBEDDING_MODEL MLXCEL_EMBEDDING_MODEL"),
        Row("--reranker-model", "MODEL", "", "LLAMA_ARG_RERANKER_MODEL MLXCEL_RERANKER_MODEL"),
        Row("--image-model", "MODEL", "", "MLXCEL_IMAGE_MODEL"),
        Row("--embeddings --embedding", "", "off", "LLAMA_ARG_EMBEDDINGS"),
        Row("--reranking --rerank", "", "off", "LLAMA_ARG_RERANKING"),
        Row("--pooling", "TYPE", "", "LLAMA_ARG_POOLING"),
        Row("--embd-normalize", "N", "*"),
        Row("--embedding-batch-size", "N", "*", "MLXCEL_EMBEDDING_BATCH_SIZE"),
        Row("--embedding-max-length", "N", "*", "MLXCEL_EMBEDDING_MAX_LENGTH"),
        Row("--embedding-queue-depth", "N", "*", "MLXCEL_EMBEDDING_QUEUE_DEPTH"),
        Row("--embedding-request-timeout-secs", "N", "*", "MLXCEL_EMBEDDING_REQUEST_TIMEOUT_SECS"),
        Row("--rerank-batch-size", "N", "*", "MLXCEL_RERANK_BATCH_SIZE"),
        Row("--audio-queue-depth", "N", "*", "MLXCEL_AUDIO_QUEUE_DEPTH"),
        Row("--audio-request-timeout-secs", "N", "*", "MLXCEL_AUDIO_REQUEST_TIMEOUT_SECS"),
        Row("--mmproj -mm", "FILE", "", "LLAMA_ARG_MMPROJ"),
        Row("--mmproj-url -mmu", "URL", "", "LLAMA_ARG_MMPROJ_URL"),
        Row("--mmproj-auto | --no-mmproj --no-mmproj-auto", "", "off", "LLAMA_ARG_MMPROJ_AUTO"),
        Row("--mmproj-offload | --no-mmproj-offload", "", "on off", "LLAMA_ARG_MMPROJ_OFFLOAD"),
        Row("--media-path", "DIR"),
        Row("--max-images", "N", "0"),
        Row("--max-image-payload-size", "SIZE"),
        Row("--video-max-frames", "N", "*", "MLXCEL_VIDEO_MAX_FRAMES"),
        Row("--video-fps", "X", "*", "MLXCEL_VIDEO_FPS"),
        Row("--image-min-tokens", "N", "", "LLAMA_ARG_IMAGE_MIN_TOKENS"),
        Row("--image-max-tokens", "N", "", "LLAMA_ARG_IMAGE_MAX_TOKENS"),
    ),
)

_SCHEDULING = Group(
    "Batching and context",
    "this version schedules with fewer knobs",
    "see --parallel, --ctx-size and --prefill-chunk-size",
    (
        Row("--batch-size -b", "N", "*", "LLAMA_ARG_BATCH"),
        Row("--ubatch-size -ub", "N", "*", "LLAMA_ARG_UBATCH"),
        Row("--decode-storage-backend", "TYPE", "auto dense", "MLXCEL_SERVER_DECODE_STORAGE"),
    ),
)

_NO_BATCH = Group(
    "Batching and context",
    "it is another name for a served flag",
    "use --no-cont-batching",
    (Row("--no-batch", "", "off"),),
)

_CACHE = Group(
    "Prompt cache",
    "it reuses the beginning of text prompts",
    _LEAVE_OUT,
    (
        Row("--enable-vlm-prefix-cache", "on|off", "off false 0 disabled", "MLXCEL_ENABLE_VLM_PREFIX_CACHE"),
        Row("--cache-reuse", "N", "0", "LLAMA_ARG_CACHE_REUSE"),
    ),
)

_STORES = Group(
    "Stored responses",
    "this version stores no responses or conversations",
    _LEAVE_OUT,
    tuple(
        Row(f"--{store}-store-{limit}", "N", "0", f"{prefix}_{store.upper()}_STORE_{variable}")
        for store in ("responses", "conversation")
        for limit, prefix, variable in (
            ("max-entries", "LLAMA_ARG", "MAX_ENTRIES"),
            ("ttl-secs", "LLAMA_ARG", "TTL_SECS"),
            ("max-bytes", "MLXCEL", "MAX_BYTES"),
        )
    ),
)

_SAMPLERS = Group(
    "Order of samplers, languages",
    "samplers run in one order, and no tokens are preferred for their language",
    "switch samplers on and off by their own flags",
    (
        Row("--samplers", "LIST", ";".join(SAMPLERS)),
        Row("--sampler-seq --sampling-seq", "LETTERS", SAMPLER_LETTERS),
        Row("--lang-bias", "LIST", "", "LLAMA_ARG_LANG_BIAS"),
        Row("--lang-bias-config", "FILE"),
        Row("--lang-bias-policy", "NAME"),
        Row("--lang-bias-rebuild-cache", "", "off"),
    ),
)

_CONSTRAINTS = Group(
    "Constrained output",
    "output is constrained by the schema of a request only",
    _LEAVE_OUT,
    (
        Row("--grammar", "TEXT"),
        Row("--grammar-file", "FILE"),
        Row("--json-schema -j", "JSON"),
        Row("--json-schema-file -jf", "FILE"),
        Row("--ignore-unknown-tools", "", "off"),
    ),
)

_CHAT = Group(
    "Chat and reasoning",
    "prompts of chats are rendered by Jinja templates, and there is one order for infilling",
    _LEAVE_OUT,
    (
        Row("--jinja | --no-jinja", "", "on", "LLAMA_ARG_JINJA"),
        Row("--spm-infill", "", "off"),
    ),
)

_SPECULATION = Group(
    "Speculative decoding",
    "this version decodes without a draft model",
    _LEAVE_OUT,
    (
        Row(
            "--spec-draft-model --model-draft --draft-model -md",
            "MODEL",
            "",
            "LLAMA_ARG_SPEC_DRAFT_MODEL LLAMA_ARG_MODEL_DRAFT",
        ),
        Row(
            "--spec-draft-n-max --draft --draft-n --draft-max",
            "N",
            "*",
            "LLAMA_ARG_SPEC_DRAFT_N_MAX LLAMA_ARG_DRAFT_MAX",
        ),
        Row("--draft-kind", "KIND", "", "LLAMA_ARG_DRAFT_KIND MLXCEL_DRAFT_KIND"),
        Row("--draft-block-size", "N", "*", "LLAMA_ARG_DRAFT_BLOCK_SIZE MLXCEL_DRAFT_BLOCK_SIZE"),
        Row("--spec-type", "TYPE", "none", "LLAMA_ARG_SPEC_TYPE"),
    ),
)

_MANY_MODELS = Group(
    "Several models and machines",
    "one server serves one model on one machine",
    "start one server for each model",
    (
        Row("--models-dir", "DIR", "", "LLAMA_ARG_MODELS_DIR"),
        Row("--models-preset", "FILE", "", "LLAMA_ARG_MODELS_PRESET"),
        Row("--models-max", "N", "*", "LLAMA_ARG_MODELS_MAX"),
        Row("--models-autoload | --no-models-autoload", "", "on off", "LLAMA_ARG_MODELS_AUTOLOAD"),
        Row("--sleep-idle-seconds", "N", "<=-0.0001"),
        Row("--node-role", "ROLE"),
        Row("--serving-bind", "ADDRESS"),
        Row("--prefill-peers", "LIST"),
        Row("--decode-peers", "LIST", "", "MLXCEL_DECODE_ALLOWLIST"),
        Row("--tp-size", "N", "1"),
        Row("--tp-moe-mode", "MODE", "*"),
        Row("--tp-embedding-mode", "MODE", "*"),
        Row("--tp-lm-head-mode", "MODE", "*"),
        Row("--pp-size", "N", "1"),
        Row("--pp-layers", "LIST"),
        Row("--pp-micro-batch-size", "N", "*"),
        Row("--pp-auto", "N"),
        Row("--distributed-config", "FILE"),
        Row("--node-id", "N"),
        Row("--cluster-peers", "LIST"),
        Row("--debug-pp-trace", "FILE"),
    ),
)

_OPERATIONS = Group(
    "Operations",
    "this version has no such endpoint or output",
    "see GET /health",
    (
        Row("--props", "", "off", "LLAMA_ARG_ENDPOINT_PROPS"),
        Row("--slot-save-path", "DIR"),
        Row("--settings", "", "off", "MLXCEL_ENABLE_SETTINGS_ENDPOINT"),
        Row("--log-prompts-dir", "DIR"),
        Row("--completion-bash", "", "off"),
        Row("--reuse-port", "", "off", "LLAMA_ARG_REUSE_PORT"),
    ),
)

_MEMORY_CHECK = Group(
    "Operations",
    "memory is not estimated before loading",
    _LEAVE_OUT,
    (Row("--estimate-memory", "", "off"), Row("--force --no-memory-check", "", "on off")),
)

_CACHE_LIST = Group(
    "Operations", "it is a command of its own", "run `mlxcel list`", (Row("--cache-list -cl", "", "off"),)
)

_TAGS = Group("Operations", "models carry no tags", "use --alias", (Row("--tags", "LIST", "", "LLAMA_ARG_TAGS"),))

_ORIGINS = Group(
    "Web page and tools",
    "there is one list of origins",
    "use --cors-origins",
    (Row("--allowed-origins", "LIST", "", "MLXCEL_ALLOWED_ORIGINS"),),
)

_WEB = Group(
    "Web page and tools",
    "there is no web page, no tool runner and no proxy in this server",
    "leave it out, or use its --no- form",
    (
        Row("--webui --ui | --no-webui --no-ui", "", "off", "LLAMA_ARG_WEBUI"),
        Row("--webui-config", "JSON", "", "LLAMA_ARG_WEBUI_CONFIG"),
        Row("--webui-config-file", "FILE", "", "LLAMA_ARG_WEBUI_CONFIG_FILE"),
        Row("--webui-mcp-proxy | --no-webui-mcp-proxy", "", "off", "LLAMA_ARG_WEBUI_MCP_PROXY"),
        Row("--cors-proxy | --no-cors-proxy", "", "off"),
        Row("--mcp-proxy | --no-mcp-proxy", "", "off"),
        Row("--mcp-config", "FILE"),
        Row("--tools", "LIST", "", "LLAMA_ARG_TOOLS"),
        Row("--agent | --no-agent --no-tools", "", "off"),
        Row("--path", "DIR", "", "LLAMA_ARG_STATIC_PATH"),
    ),
)

_GROUPS = (
    _PLACEMENT,
    _SOURCES,
    _WEIGHTS,
    _SIDE_MODELS,
    _SCHEDULING,
    _NO_BATCH,
    _CACHE,
    _STORES,
    _SAMPLERS,
    _CONSTRAINTS,
    _CHAT,
    _SPECULATION,
    _MANY_MODELS,
    _OPERATIONS,
    _MEMORY_CHECK,
    _CACHE_LIST,
    _TAGS,
    _ORIGINS,
    _WEB,
)

UNSERVED_FLAGS = tuple(flag for group in _GROUPS for flag in group.flags())
