"""Blocks of vLLM's prefix cache, followed through the steps of its scheduler (`PrefixCacheWatch`). vLLM itself is not needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.vllm_engine.prefix_cache import FIRST_WEIGHTS, PrefixCacheWatch, prefix_cache_of

if TYPE_CHECKING:
    from rlstep_hooks.record.events import KeysReused

SIZE = 16


def watch(*sizes: int) -> PrefixCacheWatch:
    made = PrefixCacheWatch("the engine", lambda: sizes or (SIZE,))
    made.weights_changed(0)
    return made


def entering(*blocks: list[int], computed: int = 0) -> Any:
    return SimpleNamespace(block_ids=blocks, num_computed_tokens=computed)


def step(of: PrefixCacheWatch, *new: Any, running: dict[str, Any] | None = None) -> KeysReused | None:
    """One step of the scheduler: `running` gives the new blocks of requests that go on, by name; "back" was pushed out before."""
    running = running or {}
    going_on = SimpleNamespace(
        req_ids=list(running),
        new_block_ids=list(running.values()),
        num_computed_tokens=[SIZE if name == "back" else 5 * SIZE for name in running],
        resumed_req_ids={"back"} & set(running),
    )
    return of.step(SimpleNamespace(scheduled_new_reqs=list(new), scheduled_cached_reqs=going_on), 0.0)


def counts(event: KeysReused | None) -> tuple[int, int, int, int, int] | None:
    return None if event is None else (event.requests, event.reusing, event.stale, event.tokens, event.oldest)


def test_keys_of_the_same_weights_are_no_finding() -> None:
    own = watch()
    # The second request finds what the first is about to fill in the same step.
    assert counts(step(own, entering([1, 2, 3]), entering([1, 2, 4], computed=2 * SIZE))) == (2, 1, 0, 0, 0)
    assert step(own, entering([1, 2, 5], computed=2 * SIZE)) is None, "it was told once"


def test_keys_of_before_a_sync_are_told_with_their_tokens() -> None:
    own = watch()
    step(own, entering([1, 2, 3]), running={"a": None})
    own.weights_changed(1)
    assert counts(step(own, entering([1, 2, 9], computed=2 * SIZE + 3), entering([7, 8]))) == (2, 1, 1, 2 * SIZE, 0)


def test_a_later_request_with_older_keys_is_told_though_the_first_had_none() -> None:
    own = watch()
    step(own, entering([1, 2]))
    own.weights_changed(1)
    assert counts(step(own, entering([5, 6]))) == (1, 0, 0, 0, 1)
    assert counts(step(own, entering([1, 2], computed=SIZE))) == (2, 1, 1, SIZE, 0)
    assert step(own, entering([1, 2], computed=SIZE)) is None


def test_a_block_that_is_given_out_again_is_new() -> None:
    own = watch()
    step(own, entering([1, 2]))
    own.weights_changed(1)
    step(own, entering([1, 2]))
    assert step(own, entering([1, 2], computed=2 * SIZE)) is None


def test_blocks_of_a_request_that_goes_on_are_followed() -> None:
    own = watch()
    step(own, entering([1]))
    own.weights_changed(1)
    step(own, entering([9]), running={"a": ([2],)})
    # Its first block is of the weights before.
    assert counts(step(own, entering([1, 2], computed=2 * SIZE))) == (2, 1, 1, SIZE, 0)


def test_a_request_that_comes_back_makes_its_cached_blocks_no_newer() -> None:
    own = watch()
    step(own, entering([1]))
    own.weights_changed(1)
    step(own, entering([9]), running={"back": ([1, 2],)})
    assert counts(step(own, entering([1, 2], computed=2 * SIZE))) == (2, 1, 1, SIZE, 0)


def test_each_group_of_layers_has_blocks_of_its_own() -> None:
    own = watch(SIZE, 2 * SIZE)
    step(own, entering([1, 2], [1]))
    own.weights_changed(1)
    step(own, entering([1, 2], [3]))
    assert counts(step(own, entering([1, 2], [1], computed=2 * SIZE))) == (2, 1, 1, 2 * SIZE, 0)


def test_a_block_that_a_window_left_behind_has_no_age() -> None:
    own = watch()
    step(own, entering([0, 2]))
    own.weights_changed(1)
    step(own, entering([2]))
    assert step(own, entering([0, 2], computed=2 * SIZE)) is None


def test_keys_of_the_weights_that_an_engine_began_with() -> None:
    own = PrefixCacheWatch("the engine", lambda: (SIZE,))
    assert step(own, entering([1, 2])) is None, "nothing was synced"
    own.weights_changed(0)
    assert counts(step(own, entering([1], computed=SIZE))) == (1, 1, 1, SIZE, FIRST_WEIGHTS)


def test_another_run_counts_anew() -> None:
    own = watch()
    own.weights_changed(5)
    step(own, entering([1, 2]))
    own.weights_changed(FIRST_WEIGHTS)
    own.weights_changed(0)
    assert counts(step(own, entering([1], computed=SIZE))) == (1, 1, 1, SIZE, FIRST_WEIGHTS)


def test_an_engine_without_a_cache_is_not_looked_at() -> None:
    def config(*, caching: bool, connector: object = None) -> Any:
        return SimpleNamespace(
            cache_config=SimpleNamespace(enable_prefix_caching=caching), kv_transfer_config=connector
        )

    assert prefix_cache_of(config(caching=False), None, "") is None
    assert prefix_cache_of(config(caching=True, connector=object()), None, "") is None
    assert prefix_cache_of(config(caching=True), None, "") is not None
