"""A row that is trained, the turns that were sampled for it, and what comparing them finds. Token ids stand in plain lists."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import msgspec

from rlstep_hooks.planning.token_row import TokenRow

Ids = list[int]


class Request(msgspec.Struct, frozen=True):
    """One sampled turn."""

    asked: Ids
    """The prompt of this turn, without padding."""
    given: Ids
    """The tokens that were sampled behind the prompt, through the end of the turn."""
    log_probs: list[float] | None = None
    """Log-probs with which the tokens were drawn, nan where one is not known; None where they were not taken."""

    @property
    def whole(self) -> Ids:
        """The prompt and what was sampled behind it."""
        return self.asked + self.given


class Difference(msgspec.Struct, frozen=True):
    """What differs between a row and its turns."""

    like: str
    """The kind of difference, in words that are the same for each row that has it."""
    at: str
    """The place of the difference in the row, with the texts."""


class Message(msgspec.Struct, frozen=True):
    """What a turn says, as it was read from its tokens."""

    text: str
    calls: list[tuple[str, Any]] = []
    """The name of each tool that it calls, with the arguments."""


class Row(msgspec.Struct, frozen=True):
    """A row as the loss gets it, without padding."""

    prompt: Ids
    completion: Ids
    trained: Ids
    """1 on each token of the completion that the loss counts, else 0."""
    log_probs: list[float] | None = None
    """The log-probs of the sampling that the loss gets for the completion; None where it gets none."""
    handed: list[float] | None = None
    """The log-probs of the sampling that the loss should get: those that were handed over, in the type of `log_probs`; None where that
    was not seen."""
    name: str = ""
    """What a finding calls the row; its place where this is empty."""
    between: list[Ids] | None = None
    """What belongs between each turn and the next one; None where nobody knows it."""
    wrong: Difference | None = None
    """What is known to be wrong with the row, besides its tokens."""
    said: list[Message | None] | None = None
    """The message that was read of each turn; None where it is not known."""
    read: Callable[[Ids, Ids], Message | None] | None = None
    """Reads the message that a turn's tokens say, from them and from the tokens before them; it gives None where it cannot."""

    @property
    def whole(self) -> Ids:
        """Prompt and completion."""
        return self.prompt + self.completion


class RowRule(msgspec.Struct, frozen=True):
    """What a framework documents of its rows."""

    decode: Callable[[Ids], str]
    """The text of token ids, special tokens included."""
    longest: int
    """Tokens that a completion can have."""
    closers: frozenset[int]
    """Last tokens of a row that is not truncated."""
    masks_truncated: bool
    """Whether nothing of a truncated row is trained."""
    exact: bool
    """Whether the framework itself joins the turns: then each sampled token is in the row and trained. A function of the user's may cut
    turns, and leave some of them untrained."""
    goes_on: bool = False
    """Whether a row may end with what an environment said behind the last turn."""
    template_end: Ids = []
    """What the chat template ends a turn with that did not end by itself."""
    hands_over: bool = False
    """Whether the loss gets, on the tokens that it trains, the log-probs that the engine told with them, bit for bit."""


class Joined(msgspec.Struct):
    """What a comparison of the rows of one rollout found."""

    rows: int = 0
    """Rows of which the sampling was seen."""
    turns: int = 0
    """How many sampled turns the compared rows have."""
    sampled: int = 0
    """How many tokens of the compared completions were sampled."""
    written: int = 0
    """How many tokens of the compared completions a tool, an environment or the chat template wrote."""
    tokens_moved: int = 0
    """How many rows have other tokens than their turns, or turns that were asked for behind other tokens."""
    masks_wrong: int = 0
    """Rows that train other tokens than the sampled ones, as documented."""
    tokens_like: str = ""
    """What is wrong with the tokens of the first such row, in words."""
    tokens_at: str = ""
    """The place of that difference in the row, with the texts."""
    masks_like: str = ""
    """What is wrong with the mask of the first such row, in words."""
    masks_at: str = ""
    """The place of that difference in the row, with the text."""
    log_probs_compared: int = 0
    """Rows of which log-probs of the sampling were compared."""
    log_probs_moved: int = 0
    """Rows whose log-probs of the sampling stand at other tokens."""
    log_probs_like: str = ""
    """What is wrong with the log-probs of the first such row, in words."""
    rewards_compared: int = 0
    """Rows whose rewards were compared with what was given for them, and for what."""
    rewards_moved: int = 0
    """Rows with other rewards, or whose rewards were given for something else."""
    rewards_like: str = ""
    """What is wrong with the reward of the first such row, in words."""
    rewards_unseen: int = 0
    """Rows with rewards of which nobody saw what they were given for."""
    prompts_encoded: int = 0
    """Rows whose prompt was encoded again from the row of the data set."""
    prompts_wrong: int = 0
    """Rows that begin with other tokens than their prompt was encoded to."""
    wrong_row: TokenRow | None = None
    """The first row with other tokens or another mask."""


class Comparison(msgspec.Struct, frozen=True):
    """One row and the turns that were sampled for it."""

    place: int
    row: Row
    chain: list[Request]
    all_chains: list[list[Request]]
    rule: RowRule

    @property
    def name(self) -> str:
        """What a finding calls the row."""
        return self.row.name or f"sample {self.place}"

    @property
    def is_left_out(self) -> bool:
        """Whether nothing of the row should be trained, because it is truncated."""
        completion = self.row.completion
        return self.rule.masks_truncated and bool(completion) and completion[-1] not in self.rule.closers


def common_length(one: Ids, other: Ids) -> int:
    """How many tokens two lists begin with in common."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return bisect_left(range(1, most + 1), True, key=lambda count: one[:count] != other[:count])
