"""Environments of tests: several turns, and batches of other sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import chz
import tinker
from tinker_cookbook import renderers
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDataset, ArithmeticDatasetBuilder
from tinker_cookbook.rl.problem_env import ProblemGroupBuilder
from tinker_cookbook.rl.types import Env, RLDataset, RLDatasetBuilder, StepResult
from tinker_cookbook.tokenizer_utils import get_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence


class TwoTurns(Env):
    """Two turns; the second prompt continues the first turn, or begins anew.

    Args:
        continues: Whether it continues it.
    """

    def __init__(self, *, continues: bool) -> None:
        self._continues = continues
        self._tokens = get_tokenizer("tiny/model").encode("User: 1 + 1?", add_special_tokens=False)
        self._more = get_tokenizer("tiny/model").encode(" and?", add_special_tokens=False)
        self._turn = 0

    async def initial_observation(self) -> Any:
        """The first prompt."""
        return tinker.ModelInput.from_ints(self._tokens), ["\n\nUser:"]

    async def step(self, action: Any, *, extra: Any = None) -> StepResult:
        """A reward of the number of even tokens."""
        self._turn += 1
        before = [*self._tokens, *action] if self._continues else self._tokens[3:]
        return StepResult(
            reward=float(sum(token % 2 == 0 for token in action)),
            episode_done=self._turn == 2,
            next_observation=tinker.ModelInput.from_ints([*before, *self._more]),
            next_stop_condition=["\n\nUser:"],
        )


class TwoTurnData(RLDataset):
    """Four groups of four; the last of three batches has three groups."""

    def __init__(self, *, continues: bool) -> None:
        self._continues = continues

    def get_batch(self, index: int) -> Sequence[Any]:
        """The groups of a batch."""
        return [
            ProblemGroupBuilder(lambda: TwoTurns(continues=self._continues), 4) for _ in range(3 if index == 2 else 4)
        ]

    def __len__(self) -> int:
        """Batches."""
        return 3


@chz.chz
class TwoTurnBuilder(RLDatasetBuilder):
    """Makes them."""

    continues: bool
    batch_size: int = 4
    group_size: int = 4

    async def __call__(self) -> tuple[RLDataset, None]:
        """The data set."""
        return TwoTurnData(continues=self.continues), None


@chz.chz
class WithTestSet(ArithmeticDatasetBuilder):
    """The recipe's arithmetic with a test set."""

    async def __call__(self) -> Any:
        """Both sets."""
        train, _ = await super().__call__()
        renderer = renderers.get_renderer(self.renderer_name, tokenizer=get_tokenizer(self.model_name_for_tokenizer))
        return train, ArithmeticDataset(batch_size=2, renderer=renderer, group_size=1, n_batches=1)


def with_test_set() -> Any:
    """Four groups of four, and a test set."""
    return WithTestSet(
        batch_size=4, model_name_for_tokenizer="tiny/model", renderer_name="role_colon", n_batches=100, group_size=4
    )
