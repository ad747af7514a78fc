"""Configuration of a server process: plain frozen values, built once from the flag table in `mlxcel.cli.flags`.

Nothing here parses, validates against a model, or reads the environment; that is the flag table's work. Every
room of the package may import this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model to load and where models are kept."""

    model: str | None = None
    """Catalogue name, directory, `.gguf` file, `owner/name` or bare name."""
    alias: tuple[str, ...] = ()
    """Names the API reports; the first is the served id. Empty: derived from the model."""
    store_root: Path | None = None
    """Model store; None: `MLXCEL_MODELS_DIR`, else `MLXCEL_CACHE_DIR/models`, else `~/.cache/mlxcel/models`."""
    revision: str | None = None
    hf_token: str | None = field(default=None, repr=False)
    offline: bool = False
    """Never download anything."""
    device: str = "auto"
    """`auto`, `gpu`, `metal` or `cpu`."""
    threads: int | None = None
    """Threads of the native CPU kernels; None: one for each processor."""
    cpu_precision: str = "default"
    """How exactly the native CPU kernels multiply quantised weights: `default`, `fast` or `exact`."""
    warmup: bool = True
    """Run one token through the model before reporting ready."""
    chat_template: str | None = None
    """Jinja source that replaces the checkpoint's template."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Server-wide defaults for template variables; a request's values win per key."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Where the server listens and whom it lets in."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0: a free port chosen by the system."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    api_prefix: str = ""
    timeout: int = 3600
    """Seconds a connection may wait for its client: to begin a request, to finish it, or to read the answer."""
    sse_ping_interval: float = 30.0
    """Seconds between SSE keep-alive comments; -1: none."""
    cors_origins: tuple[str, ...] = ("*",)
    cors_methods: str = "GET, POST, OPTIONS"
    cors_headers: str = "*"
    cors_credentials: bool = False
    max_body_bytes: int = 2 * 1024 * 1024
    """Largest JSON request body; above it the answer is 413."""
    ssl_cert_file: Path | None = None
    ssl_key_file: Path | None = None
    metrics: bool = False
    """Serve `/metrics`."""
    slots: bool = True
    """Serve `/slots`."""


STUCK_GUARD = 300.0
"""Seconds without progress that are borne even when no limit is wanted: nobody can wait for ever."""

MIN_SLOT_CONTEXT = 512
"""Least tokens of context a slot is started with."""

MIN_KV_SIZE = 256
"""Least tokens whose keys and values are kept of a sequence, when not all are."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Slots, context and scheduling."""

    ctx_size: int = 0
    """Tokens of context shared by all slots; 0: the model's window for every slot."""
    parallel: int = 4
    """Decode slots."""
    max_batch_size: int | None = None
    """Widest decode batch; None: `parallel`. The context is divided by this number."""
    max_queue_depth: int = 32
    """Requests that may wait for a slot before the server answers 503."""
    prefill_chunk_size: int | None = None
    """Most prompt tokens per prefill step; 0: the whole prompt at once; None: 2048 on a GPU, 512 on a CPU."""
    prefill_grant_interval: int = 16
    """Decode steps between two chunks of a parked prefill; 0: decode until the batch drains."""
    decode_timeout: float = 600.0
    """Seconds without progress after which a running request ends; 0: `STUCK_GUARD`."""
    n_predict: int = -1
    """Default generation budget when a request names none; -1: the rest of the context."""
    no_cont_batching: bool = False
    """True: one sequence at a time."""
    preemption: bool = False
    """A waiting request may take the place of a running one of lower priority, which goes on later."""
    context_shift: bool = False
    """A full context loses old tokens instead of ending the generation."""
    keep: int = 0
    """First tokens that stay then; -1: the prompt."""

    max_kv_size: int | None = None
    """Tokens of a sequence whose keys and values are kept: the first ones and the latest; None: all."""

    @property
    def slots(self) -> int:
        """Number of sequences decoded together."""
        if self.no_cont_batching:
            return 1
        return self.max_batch_size or self.parallel

    @property
    def stuck_after(self) -> float:
        """Seconds after which a step of the model counts as hanging."""
        return self.decode_timeout or STUCK_GUARD

    def slot_context(self, window: int, slots: int) -> int:
        """Tokens of context for each of `slots` slots, of a model that was made for `window`."""
        return window if self.ctx_size <= 0 else min(window, self.ctx_size // slots)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Memory for keys and values, and what of them is kept between requests."""

    cache_prompt: bool = True
    enabled: bool = True
    refused: bool = False
    """Any of these three switches the prompt cache off."""
    capacity_bytes: int | None = None
    """Most that is kept; 0: nothing; None: 2 GiB, or more for a model with large keys and values."""
    max_entries: int = 1024
    ttl: float = 3600
    """Seconds an entry stays that nobody uses."""
    min_prefix: int = 32
    """Tokens below which a common beginning is not worth it."""
    snapshot_capacity_bytes: int | None = None
    """The same for models whose state cannot be cut; None: 512 MiB, or more."""
    snapshot_max_entries: int = 4096
    snapshot_ttl: float = 7200
    boundaries: bool = True
    """Keep such a state where a chat's history ends, too."""
    warm_up: bool = True
    """Extend such a state over the answer while there is nothing else to do."""
    trace: bool = False
    """Log every state that is kept, taken over or refused."""
    apc_enabled: bool = True
    """Find common beginnings block by block; False: only what is the whole of an earlier sequence."""
    apc_block_size: int = 16
    """Tokens in a block."""
    apc_num_blocks: int = 0
    """Different blocks that may be known; 0: as many as fit."""
    apc_hash: str = "sha256"
    """`sha256` or `blake3`."""
    kv_budget: int | str | None = "auto"
    """Bytes for running sequences and the prompt cache together; `auto`: what memory allows; None: no limit."""
    kv_watermark: float = 0.01
    """Share of the budget that stays free while rows are decoded, for them to grow into."""
    kv_mode: str = "fp16"
    """What keys and values are stored as; see `mlxcel.engine.cache.kv_mode`."""
    kv_keys: str | None = None
    """The same for keys alone, and stronger."""
    kv_values: str | None = None
    kv_outer_layers: int = 2
    """Layers at either end whose values keep all bits when the others have 4 or 3."""
    kv_bits: int | None = None
    """Bits of keys and values: another way to say it."""
    kv_skip_last: bool = True
    """The last layer keeps all bits then."""

    @property
    def kept(self) -> bool:
        """Whether there is a prompt cache."""
        return self.cache_prompt and self.enabled and not self.refused and self.capacity_bytes != 0


SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
SAMPLER_LETTERS = "edskypmxt"
"""The one order of sampling stages, as llama.cpp's server writes its own."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Server-wide sampling values. None: not set on the command line, so the checkpoint's
    `generation_config.json` and then the built-in default apply."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repetition_penalty: float | None = None
    repetition_context_size: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: tuple[str, ...] | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    ignore_eos: bool | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    adaptive_target: float | None = None
    adaptive_decay: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class GrammarConfig:
    """Structured output."""

    allow_json_object: bool = False
    """Serve `response_format` of type `json_object` as "any object"."""


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """How conversations become prompts, and what becomes of the reasoning in answers."""

    reasoning_format: str = "deepseek"
    """Where reasoning is shown; see `mlxcel.chat.stream.ReasoningFormat`."""
    reasoning_alias: str = "reasoning"
    """A second name of the field with the reasoning; `none`: it has one."""
    reasoning_budget: int = -1
    """Tokens the reasoning of an answer may have when a request does not say; -1: any number."""
    reasoning: bool | None = None
    """Whether templates that know `enable_thinking` let the model reason; None: as they like."""
    reasoning_effort: str | None = None
    reasoning_preserve: bool = False
    """Keep the reasoning of earlier answers in the prompt."""
    skip_parsing: bool = False
    """Answers are passed on as the model writes them."""
    prefill_assistant: bool = True
    """A last message of the assistant is the beginning of the answer."""
    reasoning_echo: int = 16 << 20
    """Bytes of reasoning that are remembered for clients which send answers back without it; 0: nothing."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Where log lines go and how many."""

    verbosity: int = 3
    """0-1 error, 2 warning, 3 info, 4 and more debug."""
    file: Path | None = None
    disable: bool = False
    colors: str = "auto"
    prefix: bool = True
    timestamps: bool = True


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything a server process needs to know."""

    model: ModelConfig = field(default_factory=ModelConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    grammar: GrammarConfig = field(default_factory=GrammarConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    log: LogConfig = field(default_factory=LogConfig)
