"""A prompt cache over counted blocks, with everything around it."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlxcel.config import CacheConfig
from mlxcel.engine.admission import Admission
from mlxcel.engine.cache.prompt_cache import PromptCache
from mlxcel.engine.cache.storage import Reuse
from mlxcel.engine.generation import Generation
from mlxcel.engine.request import GenerationRequest
from mlxcel.engine.sequence import Sequence
from tests.engine.scripted import ByteTokenizer, ScriptedStorage

BLOCK = ScriptedStorage.BLOCK
LIMITLESS = 1 << 40


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Setup:
    """A cache with everything around it."""

    storage: ScriptedStorage
    cache: PromptCache
    admission: Admission
    clock: Clock
    keys: int = 0
    config: CacheConfig = field(default_factory=CacheConfig)

    def sequence(self, tokens: list[int], **request: object) -> Sequence:
        self.keys += 1
        made = GenerationRequest(tuple(tokens), **request)  # type: ignore[arg-type]
        return Sequence(self.keys, made, Generation(made), ByteTokenizer(), 100)

    def begin(self, tokens: list[int], **request: object) -> tuple[Sequence, int]:
        """A sequence with its prompt read, and how much of it was cached."""
        sequence = self.sequence(tokens, **request)
        assert self.admission.admit(sequence, ())
        cached = sequence.prefilled
        stops = [sequence.boundary, len(tokens)]
        for stop in stops:
            if stop is not None and stop > self.storage.length(sequence.key):
                have = self.storage.length(sequence.key)
                self.storage.append(self.storage.open(sequence.key), tokens[have:stop])
                if stop == sequence.boundary:
                    self.cache.keep_boundary(sequence)
        return sequence, cached

    def end(self, sequence: Sequence, *, well: bool = True) -> None:
        if well:
            self.cache.donate(sequence)
        self.storage.discard(sequence.key)

    def run(self, tokens: list[int], **request: object) -> int:
        """A whole life, with nothing generated; how much of the prompt was cached."""
        sequence, cached = self.begin(tokens, **request)
        self.end(sequence)
        return cached


def setup(reuse: Reuse = Reuse.BEGINNING, budget: int | None = None, **config: object) -> Setup:
    values = {"min_prefix": 4, "apc_block_size": 4, "capacity_bytes": LIMITLESS, "snapshot_capacity_bytes": LIMITLESS}
    made = CacheConfig(**{**values, **config})  # type: ignore[arg-type]
    storage, clock = ScriptedStorage(reuse, budget), Clock()
    cache = PromptCache(storage, made, clock=clock)
    return Setup(storage, cache, Admission(storage, cache, made.kv_watermark), clock, config=made)


def text(length: int, start: int = 0) -> list[int]:
    return [(start + 7 * i) % 251 for i in range(length)]
