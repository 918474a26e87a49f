"""Which texts are those of a turn's tokens: with its end or without it, and behind what the template puts before each answer."""

from __future__ import annotations

import pytest

from rlstep_hooks.observe.turn_rows import Request
from rlstep_hooks.systems.swift.observe.scored_texts import AnswerForm, answer_form, others_scored


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
    assert others_scored(Letters(), AnswerForm(), [Request(asked, given)], [text]) == (not is_own)


@pytest.mark.parametrize(("begins_at_text", "text"), [(True, "yes"), (True, "\n\nyes"), (False, "\n\nyes")])
def test_templates_of_glm_take_newlines_off_a_text(begins_at_text: bool, text: str) -> None:
    asked, given = [], [ord(letter) for letter in "\n\nyes."]
    form = AnswerForm(begins_at_text=begins_at_text)
    assert others_scored(Letters(), form, [Request(asked, given)], [text]) == 0
    assert others_scored(Letters(), form, [Request(asked, given)], ["yes" if not begins_at_text else "\n\nno"]) == 1


def test_what_a_template_puts_before_an_answer_may_be_lost_in_the_tokens_of_the_prompt() -> None:
    asked, given = ([ord(letter) for letter in of] for of in ("question ?", "yes."))
    form = AnswerForm(beginnings=("<think></think>",))
    assert others_scored(Letters(), form, [Request(asked, given)], ["<think></think>\nyes"]) == 0
    assert others_scored(Letters(), form, [Request(asked, given)], ["<thoughts>\nyes"]) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [("qwen2_5", AnswerForm()), ("glm4", AnswerForm(("<think>",), True)), ("kimi_k3", None)],
)
def test_what_a_template_makes_of_an_answer(
    name: str, expected: AnswerForm | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swift.template import TEMPLATE_MAPPING

    meta = TEMPLATE_MAPPING[name]
    template = object.__new__(meta.template_cls)
    template.template_meta, template.response_prefix = meta, None
    assert answer_form(template) == expected
