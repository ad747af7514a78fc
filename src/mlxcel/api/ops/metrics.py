"""GET /metrics: all counts for Prometheus, under our names and under those of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from mlxcel.api.state import AppState
from mlxcel.api.totals import RequestTotals
from mlxcel.engine.cache.stats import CacheStats
from mlxcel.engine.engine import EngineSnapshot
from mlxcel.telemetry.exposition import MEDIA_TYPE, Family, counter, exposition, gauge, labelled


async def metrics(state: AppState, request: Request) -> Response:
    """The numbers, in every state of the server."""
    numbers, cache = state.engine.snapshot(), state.engine.cache_stats()
    families = [
        *_llamacpp(numbers),
        *_requests(state.totals),
        *_slots(numbers),
        *_batch(numbers),
        *_prompt_cache(cache),
        *_snapshots(cache),
        *_key_value_memory(cache),
    ]
    headers = {"Process-Start-Time-Unix": str(state.created)}
    return Response(exposition(families), headers=headers, media_type=MEDIA_TYPE)


def _llamacpp(numbers: EngineSnapshot) -> Iterator[Family]:
    prompt, generated = numbers.total_prefill_tokens, numbers.total_decode_tokens
    prefill, decode = numbers.prefill_seconds, numbers.decode_seconds
    steps = numbers.decode_steps_processed
    yield counter("llamacpp:prompt_tokens_total", "Prompt tokens that were read", prompt)
    yield counter("llamacpp:prompt_seconds_total", "Seconds spent on reading prompts", prefill)
    yield counter("llamacpp:tokens_predicted_total", "Tokens that were generated", generated)
    yield counter("llamacpp:tokens_predicted_seconds_total", "Seconds spent on generating tokens", decode)
    yield counter("llamacpp:n_decode_total", "Runs of the model", steps + numbers.prefill_chunks_processed)
    yield gauge(
        "llamacpp:n_busy_slots_per_decode", "Rows of a decode step, on average", _rate(numbers.decode_rows, steps)
    )
    yield gauge("llamacpp:prompt_tokens_seconds", "Prompt tokens read in a second, on average", _rate(prompt, prefill))
    yield gauge(
        "llamacpp:predicted_tokens_seconds", "Tokens generated in a second, on average", _rate(generated, decode)
    )
    yield gauge("llamacpp:requests_processing", "Requests in a slot", numbers.active_sequences)
    yield gauge("llamacpp:requests_deferred", "Requests that wait for a slot", numbers.queue_depth)


def _requests(totals: RequestTotals) -> Iterator[Family]:
    yield counter(
        "mlxcel_requests_total",
        "Total number of completed generation requests; chat completion streams cancelled by the client are excluded",
        totals.requests,
    )
    yield counter("mlxcel_prompt_tokens_total", "Total prompt tokens processed", totals.prompt_tokens)
    yield counter(
        "mlxcel_completion_tokens_total",
        "Total completion tokens of the requests counted in mlxcel_requests_total",
        totals.completion_tokens,
    )
    yield counter("mlxcel_generation_time_seconds_total", "Total generation time in seconds", totals.seconds)


def _slots(numbers: EngineSnapshot) -> Iterator[Family]:
    slots = numbers.max_batch_size
    yield gauge("mlxcel_slots_total", "Total number of parallel slots", slots)
    yield gauge("mlxcel_slots_available", "Available parallel slots", slots - numbers.active_sequences)
    yield gauge("mlxcel_queue_depth", "Current prefill queue depth", numbers.queue_depth)


def _batch(numbers: EngineSnapshot) -> Iterator[Family]:
    yield counter("mlxcel_batch_sequences_started", "Total sequences that entered prefill", numbers.sequences_started)
    yield counter(
        "mlxcel_batch_sequences_completed", "Total sequences that completed generation", numbers.sequences_completed
    )
    yield counter(
        "mlxcel_batch_prefill_tokens_total", "Cumulative prefill tokens processed", numbers.total_prefill_tokens
    )
    yield counter("mlxcel_batch_decode_tokens_total", "Cumulative decode tokens generated", numbers.total_decode_tokens)
    yield gauge("mlxcel_batch_current_size", "Current active batch size", numbers.current_batch_size)
    yield gauge("mlxcel_cache_pool_active", "Active cache entries", numbers.cache_pool_active)
    yield counter(
        "mlxcel_batch_prefill_grants_total",
        "Prompt chunks that were read while rows waited for their next token",
        numbers.prefill_grants,
    )


def _prompt_cache(cache: CacheStats) -> Iterator[Family]:
    yield gauge("mlxcel_prompt_cache_entries", "Prompts that are kept", cache.entries)
    yield gauge("mlxcel_prompt_cache_bytes", "Memory of the prompts that are kept", cache.bytes)
    yield gauge("mlxcel_prompt_cache_capacity_bytes", "Memory they may take", cache.capacity_bytes)
    yield counter(
        "mlxcel_prompt_cache_lookups_total", "Requests that might have begun with a kept prompt", cache.lookups
    )
    yield counter("mlxcel_prompt_cache_hits_total", "Requests that did", cache.hits)
    yield counter("mlxcel_prompt_cache_inserts_total", "Prompts that came in", cache.inserts)
    yield labelled(
        "mlxcel_prompt_cache_evictions_total",
        "Prompts that went: the least recently used for others, or nobody used them for long",
        "reason",
        {"lru": cache.evictions_lru, "ttl": cache.evictions_ttl},
    )
    yield labelled(
        "mlxcel_prompt_cache_reject_total",
        "Prompts that were not kept: larger than the cache, or with a state that cannot be saved",
        "reason",
        {"oversized": cache.rejections_oversized, "model_owned_state": cache.reject_model_owned_state},
    )


def _snapshots(cache: CacheStats) -> Iterator[Family]:
    """The same for models whose state cannot be cut."""
    prefix = "mlxcel_prompt_cache_snapshot"
    yield gauge(f"{prefix}_entries", "Whole states that are kept", cache.snapshot_entries)
    yield gauge(f"{prefix}_bytes", "Memory of the states that are kept", cache.snapshot_bytes)
    yield gauge(f"{prefix}_capacity_bytes", "Memory they may take", cache.snapshot_capacity_bytes)
    yield counter(f"{prefix}_hits_total", "Requests that began with a kept state", cache.snapshot_hits)
    yield counter(f"{prefix}_inserts_total", "States that came in", cache.snapshot_inserts)
    yield counter(f"{prefix}_supersedes_total", "States that took the place of another", cache.snapshot_supersedes)
    yield labelled(
        f"{prefix}_evictions_total",
        "States that went: the least recently used for others, or nobody used them for long",
        "reason",
        {"lru": cache.snapshot_evictions_lru, "ttl": cache.snapshot_evictions_ttl},
    )


def _key_value_memory(cache: CacheStats) -> Iterator[Family]:
    """Running sequences and the prompt cache together, as they were when the last request came or went."""
    used, budget, block = cache.kv_bytes_used, cache.kv_bytes_budget, cache.kv_block_bytes
    yield gauge("mlxcel_kv_bytes_used", "Memory of keys and values", used)
    if budget is not None:
        yield gauge("mlxcel_kv_bytes_budget", "Memory they may take", budget)
    if block:
        yield gauge("mlxcel_paged_blocks_used", "Blocks of keys and values in use", used // block)
        if budget is not None:
            yield gauge("mlxcel_paged_blocks_total", "Blocks there may be", budget // block)


def _rate(amount: float, per: float) -> float:
    return amount / per if per else 0.0
