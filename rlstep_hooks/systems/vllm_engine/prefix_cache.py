"""Which requests take keys and values that older weights computed from vLLM's prefix cache.

Read in vLLM 0.32: the scheduler tells the worker, step by step, which blocks each request holds, and how many of its tokens need not be
computed (v1/core/sched/output.py: `NewRequestData`, `CachedRequestData`). Those are in blocks that other requests have filled before.
Weights of a sync do not empty the cache: the framework has to (`reset_prefix_cache`, which does nothing while a block is in use,
v1/core/block_pool.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import KeysReused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIRST_WEIGHTS = -1
"""The number of the weights that an engine begins with; syncs count from 0."""


def prefix_cache_of(config: Any, runner: Any, engine: str) -> PrefixCacheWatch | None:
    """The watch of an engine's cache; None if it has none, or if keys come from elsewhere too.

    Args:
        config: vLLM's own.
        runner: The model runner of the worker.
        engine: The name of the engine in findings.
    """
    if not config.cache_config.enable_prefix_caching or config.kv_transfer_config is not None:
        return None
    return PrefixCacheWatch(engine, lambda: _block_sizes(config, runner))


def _block_sizes(config: Any, runner: Any) -> tuple[int, ...]:
    """Tokens of a block, for each group of layers (v1/kv_cache_interface.py, `KVCacheConfig`)."""
    groups = getattr(getattr(runner, "kv_cache_config", None), "kv_cache_groups", None)
    if groups is None:
        return (int(config.cache_config.block_size),)
    return tuple(int(group.kv_cache_spec.block_size) for group in groups)


class PrefixCacheWatch:
    """Remembers for each block under which weights it was given out, and looks at the blocks that new requests find filled.

    A request that goes on across a sync is not looked at: whether it does is the framework's decision. Blocks that it gives back are
    as old as their first token.

    Args:
        engine: The name of the engine in findings.
        block_sizes: Gives the tokens of a block for each group of layers, once the engine computes.
    """

    def __init__(self, engine: str, block_sizes: Callable[[], tuple[int, ...]]) -> None:
        self._engine = engine
        self._block_sizes = block_sizes
        self._sizes: tuple[int, ...] = ()
        self._filled: dict[tuple[int, int], int] = {}
        """Group and block -> the number of the weights under which it was given out."""
        self._number = FIRST_WEIGHTS
        self._requests = self._reusing = self._stale = self._tokens = 0
        self._oldest = FIRST_WEIGHTS
        self._told = self._told_stale = False

    def weights_changed(self, number: int) -> None:
        """The engine holds other weights from now on.

        Args:
            number: The number of their sync; FIRST_WEIGHTS where another run begins to count.
        """
        if number == FIRST_WEIGHTS:
            self._filled.clear()
        self._number = self._oldest = number
        self._requests = self._reusing = self._stale = self._tokens = 0
        self._told = self._told_stale = False

    def step(self, scheduled: Any, at: float) -> KeysReused | None:
        """The engine computes a step.

        Args:
            scheduled: vLLM's `SchedulerOutput`.
            at: The time.

        Returns:
            What was seen since the latest sync, where it is to be told: after its first requests, and at the first of them that takes
            older keys.
        """
        self._sizes = self._sizes or self._block_sizes()
        running = scheduled.scheduled_cached_reqs
        for name, blocks, computed in zip(
            running.req_ids, running.new_block_ids, running.num_computed_tokens, strict=True
        ):
            if blocks:
                # A request that was pushed out, and comes back, is given all its blocks once more.
                self._give_out(blocks, computed if name in running.resumed_req_ids else 0)
        for request in scheduled.scheduled_new_reqs:
            self._enters(request.block_ids, request.num_computed_tokens)
        if self._number == FIRST_WEIGHTS or not self._requests:
            return None
        if self._told and (self._told_stale or not self._stale):
            return None
        self._told, self._told_stale = True, bool(self._stale)
        return KeysReused(
            at=at,
            number=self._number,
            engine=self._engine,
            requests=self._requests,
            reusing=self._reusing,
            stale=self._stale,
            tokens=self._tokens,
            oldest=self._oldest,
        )

    def _enters(self, blocks: Sequence[Sequence[int]], computed: int) -> None:
        """A request enters the batch with these blocks of each group, the first of which hold keys of `computed` tokens."""
        self._requests += 1
        if computed:
            self._reusing += 1
            self._look_at(blocks, computed)
        self._give_out(blocks, computed)

    def _look_at(self, blocks: Sequence[Sequence[int]], computed: int) -> None:
        """A request takes keys of `computed` tokens from the first of these blocks."""
        tokens, oldest = 0, self._number
        for group, (own, size) in enumerate(zip(blocks, self._sizes, strict=True)):
            # 0 stands for a block that a window of attention has left behind (v1/core/block_pool.py, `null_block`).
            ages = [self._filled.get((group, block), FIRST_WEIGHTS) for block in own[: computed // size] if block]
            older = [age for age in ages if age < self._number]
            tokens, oldest = max(tokens, len(older) * size), min([oldest, *older])
        if tokens:
            self._stale += 1
            self._tokens += tokens
            self._oldest = min(self._oldest, oldest)

    def _give_out(self, blocks: Sequence[Sequence[int]], computed: int) -> None:
        """A request fills these blocks of each group from now on, but for the first, which hold keys of `computed` tokens."""
        for group, (own, size) in enumerate(zip(blocks, self._sizes, strict=True)):
            for block in own[computed // size :]:
                self._filled[group, block] = self._number
