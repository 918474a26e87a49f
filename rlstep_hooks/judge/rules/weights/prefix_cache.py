"""Whether an engine computes with keys and values that older weights left in its prefix cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import OTHER_FORWARD, Effects
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from rlstep_hooks.record.events import KeysReused


class OlderKeys(Rule):
    """Requests of a new policy take keys and values that an older one computed from the engine's prefix cache.

    What it checks:
        Each request that enters an engine after a sync of weights: the blocks of its prompt that the scheduler takes from the prefix
        cache were filled after that sync, or after an earlier one of the same policy. Exact: each block is followed from the request
        that it was given to.

    Why it matters:
        The weights in the engine are the new ones, and so is their label. But the tokens of a prompt that comes again are attended
        to as the old policy saw them, so that samples are drawn from a mixture that is no policy at all. It shows only as a small
        distance of the engine's log-probs, which looks like rounding.

    Example:
        ERROR RLS422 Keys of older weights · data epoch 0, rollout 0, update 2
          expected  keys and values that the engine computed after sync 1
          observed  4 of 8 requests took keys of 768 tokens that were computed
                    before it, the oldest after sync 0
          why       their prompts are attended to as older weights saw them
          fix       empty the prefix cache after each sync (`reset_prefix_cache`),
                    when no request runs

    What to do:
        Call `reset_prefix_cache` after the last tensor of a sync, in each engine, and look at what it returns: vLLM does nothing and
        gives False while a request holds a block.

    Known limits:
        - The engine must be vLLM in a process that is observed. One without a prefix cache, or with a connector that brings keys from
          elsewhere, is not looked at.
        - A request that goes on across a sync keeps its keys. Whether it should is the framework's decision, and is not judged.
        - Keys of an adapter that was delivered again under the same name are not told apart.

    Sources:
        - https://github.com/huggingface/trl/issues/3024: a prefix cache that outlived its weights
        - https://github.com/NovaSky-AI/SkyRL/issues/2246: a reset that one path of syncs leaves out
        - https://github.com/NovaSky-AI/SkyRL/pull/1824: a reset that does nothing while requests run
        - https://github.com/RLinf/RLinf/pull/96: rewards that drop after a long run
        - https://github.com/radixark/miles/pull/2783: common prefixes that stay in the cache from sync to sync
        - https://docs.vllm.ai/en/latest/design/prefix_caching.html: blocks and their hashes, of tokens and not of weights
    """

    code = "RLS422"
    title = "Keys of older weights"
    topics = ("prefix_cache",)
    nothing_seen = "no engine with a prefix cache told what its requests took from it"
    optional = True
    produces = (Effects(("RLS403", "RLS413", *OTHER_FORWARD), last=1),)

    def keys_reused(self, event: KeysReused) -> None:
        """Look whether requests took keys that are older than the weights."""
        if self.any_wrong(event.stale):
            older = "by the weights that the engine began with" if event.oldest < 0 else f"after sync {event.oldest}"
            self.fail(
                expected=f"keys and values that {event.engine} computed after sync {event.number}",
                observed=f"{event.stale} of {number(event.requests, 'requests')} took keys of {number(event.tokens, 'tokens')} that "
                f"were computed before it, the oldest {older}",
                why="their prompts are attended to as older weights saw them",
                fix="empty the prefix cache after each sync (`reset_prefix_cache`), when no request runs",
            )
