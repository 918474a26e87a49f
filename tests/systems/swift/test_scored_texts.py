"""Which texts are those of a turn's tokens: with its end or without it, and behind what the template puts before each answer."""

from __future__ import annotations

import pytest

from rlstep_hooks.observe.turn_rows import Request
from rlstep_hooks.systems.swift.observe.scored_texts import others_scored


class Letters:
    """A tokenizer whose tokens are letters, of which "." ends a turn."""

    all_special_ids = (ord("."),)

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        """The letters, perhaps without ends."""
        return "".join(chr(one) for one in ids if not (skip_special_tokens and one in self.all_special_ids))


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ("yes", True),
        ("yes.", True),
        ("<think>\nyes", True),
        ("\n<think>\n\nyes", True),
        ("<think> yes", True),
        ("no", False),
        ("ye", False),
        ("question", False),
        ("<thinks>yes", False),
        ("oh yes", False),
    ],
)
def test_a_text_is_that_of_its_tokens_behind_the_end_of_its_prompt(text: str, is_own: bool) -> None:
    asked, given = ([ord(letter) for letter in of] for of in ("question <think>\n", "yes."))
    assert others_scored(Letters(), [Request(asked, given)], [text]) == (not is_own)
