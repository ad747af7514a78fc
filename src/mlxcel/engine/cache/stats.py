"""The prompt cache in numbers, as `GET /v1/cache/stats` shows it."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel.config import CacheConfig


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts since the start, and what is there now. All zero where there is no cache."""

    enabled: bool
    apc_enabled: bool
    """Whether prompts are matched block by block."""
    block_size: int
    """Tokens in such a block."""
    hash: str
    entries: int = 0
    bytes: int = 0
    capacity_bytes: int = 0
    max_entries: int = 0
    hits: int = 0
    """Prompts that began with something in the cache."""
    lookups: int = 0
    hit_rate: float = 0.0
    inserts: int = 0
    evictions_lru: int = 0
    evictions_ttl: int = 0
    rejections_oversized: int = 0
    total_blocks_stored: int = 0
    """Blocks of all entries, shared ones counted for each."""
    unique_block_hashes: int = 0
    apc_active_entries: int = 0
    """Entries that are found by their blocks."""
    snapshot_entries: int = 0
    """The same of the store for models whose state cannot be cut."""
    snapshot_bytes: int = 0
    snapshot_bytes_per_entry: int = 0
    snapshot_capacity_bytes: int = 0
    snapshot_hits: int = 0
    snapshot_inserts: int = 0
    snapshot_supersedes: int = 0
    snapshot_evictions_lru: int = 0
    snapshot_evictions_ttl: int = 0
    reject_model_owned_state: int = 0
    """Sequences whose state could not be saved."""
    kv_cache_mode_effective: str = ""
    """What keys and values are stored as."""
    kv_bytes_used: int = 0
    """Running sequences and the cache together."""
    kv_bytes_budget: int | None = None
    """None: no limit."""
    kv_block_bytes: int = 0
    """Size of the blocks both are counted in; 0 without blocks."""


def empty_stats(config: CacheConfig) -> CacheStats:
    """What a cache says that holds nothing, and a server without one."""
    kept = config.kept
    return CacheStats(
        enabled=kept,
        apc_enabled=kept and config.apc_enabled,
        block_size=config.apc_block_size,
        hash=config.apc_hash,
        max_entries=config.max_entries if kept else 0,
    )
