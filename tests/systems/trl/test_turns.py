"""Where each trained token comes from, in several turns: healthy runs say nothing, each fault is found at its first event by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

from tests.systems.trl.conftest import RELEASE

if Version("1.16") > RELEASE:
    pytest.skip("turns are joined in TRL 1.16 and later", allow_module_level=True)

from tests.systems.trl.helpers import problems
from tests.systems.trl.multi_turn import (
    Room,
    conversation_rollout,
    encodable,
    multi_turn_run,
    multiply,
    multiply_later,
    silent,
    speaking,
    thoughtful,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

SEVERAL = {"calls": 2}
HEALTHY: dict[str, dict[str, Any]] = {
    "tools, Qwen 2.5": {"tools": [multiply]},
    "tools, Qwen 3, two calls": {"tools": [multiply], "kind": "Qwen 3", "script_settings": SEVERAL},
    "tools, Llama 3": {"tools": [multiply], "kind": "Llama 3"},
    "tools, GLM, two calls": {"tools": [multiply], "kind": "GLM", "script_settings": SEVERAL},
    "tools, Kimi, two calls": {"tools": [multiply], "kind": "Kimi", "script_settings": SEVERAL},
    "asynchronous tools": {"tools": [multiply_later], "script_settings": {"tool": "multiply_later"}},
    "rows with and without tools": {"tools": [multiply], "script_settings": SEVERAL | {"some": True}},
    "at most one call": {"tools": [multiply], "script_settings": SEVERAL, "max_tool_calling_iterations": 1},
    "environment": {"environment_factory": Room, "script_settings": SEVERAL | {"tool": "look"}},
    "truncated in the second turn": {"tools": [multiply], "max_completion_length": 160},
    "truncated rows left out": {
        "tools": [multiply],
        "script_settings": {"some": True},
        "max_completion_length": 160,
        "mask_truncated_completions": True,
    },
    "too long for a tool's result": {"tools": [multiply], "max_completion_length": 100},
    "function of rollouts": {"rollout_func": conversation_rollout(), "script": speaking},
    "function of rollouts, three turns": {
        "rollout_func": conversation_rollout(turns=3),
        "script": speaking,
        "num_iterations": 2,
    },
    "template each turn, that it repeats": {
        "rollout_func": conversation_rollout(whole_template=True),
        "script": encodable,
    },
    "log-probs of a function of rollouts": {
        "rollout_func": conversation_rollout(log_probs=list),
        "script": silent,
        "max_completion_length": 12,
    },
    "two groups, padded": {"tools": [multiply], "per_device_train_batch_size": 8, "pad_to_multiple_of": 16},
}
"""Configurations in several turns that are right."""
MINUTES = {
    "truncated rows left out",
    "two groups, padded",
    "function of rollouts, three turns",
    "template each turn, that it repeats",
}
"""Those that a short check leaves out."""


def parameters(names: Any) -> list[Any]:
    """All of them, some only in a thorough check."""
    return [pytest.param(name, marks=pytest.mark.thorough) if name in MINUTES else name for name in names]


def outcome(report: Report, code: str) -> Any:
    """What became of a rule."""
    return next(rule for rule in report.rules if rule.code == code)


@pytest.mark.parametrize("name", parameters(HEALTHY))
def test_healthy_turns_say_nothing(name: str, tmp_path: Path) -> None:
    report = multi_turn_run(tmp_path, **HEALTHY[name])
    assert problems(report) == []
    assert outcome(report, "RLS518").verdict == "PASS", outcome(report, "RLS518")
    assert outcome(report, "RLS518").checks >= 2
    assert outcome(report, "RLS306").verdict == "PASS"


def from_second(method: str, change: Callable[[Any, Any], Any]) -> Callable[[Any], None]:
    """A fault: what a method of the trainer gives is changed, from its second call on."""

    def fault(trainer: Any) -> None:
        original, calls = getattr(trainer, method), iter(range(10**9))

        def changed(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            return change(trainer, result) if next(calls) else result

        setattr(trainer, method, changed)

    return fault


def of_loop(change: Callable[[list[int], list[int]], tuple[list[int], list[int]]]) -> Callable[[Any], None]:
    """A fault in the loop of tools: each row's mask and completion are changed."""

    def rows(trainer: Any, result: Any) -> Any:
        mask, completions, ids, *rest = result
        both = [change(list(of_mask), list(of_ids)) for of_mask, of_ids in zip(mask, ids, strict=True)]
        return ([of_mask for of_mask, _ in both], completions, [of_ids for _, of_ids in both], *rest)

    return from_second("_tool_call_loop", rows)


def spans(mask: list[int]) -> tuple[int, int]:
    """Where what the tool wrote begins and ends."""
    begin = mask.index(0)
    return begin, begin + mask[begin:].index(1)


def swapped(mask: list[int], ids: list[int]) -> tuple[list[int], list[int]]:
    begin, end = spans(mask)
    return mask[end:] + mask[begin:end] + mask[:begin], ids[end:] + ids[begin:end] + ids[:begin]


def other_result(mask: list[int], ids: list[int]) -> tuple[list[int], list[int]]:
    begin, end = spans(mask)
    place = (begin + end) // 2
    return mask, [*ids[:place], ids[place] + 1, *ids[place + 1 :]]


def without_result(mask: list[int], ids: list[int]) -> tuple[list[int], list[int]]:
    begin, end = spans(mask)
    return mask[:begin] + mask[end:], ids[:begin] + ids[end:]


def encoded_again(trainer: Any, result: Any) -> Any:
    tokenizer = trainer.processing_class
    ids, log_probs = result
    return [tokenizer.encode(tokenizer.decode(one)) for one in ids], log_probs


def rolled(place: int) -> Callable[[Any, Any], Any]:
    """One of what `_generate` gives is that of the row four rows on."""

    def change(trainer: Any, result: Any) -> Any:
        parts = list(result)
        parts[place] = parts[place][4:] + parts[place][:4]
        return tuple(parts)

    return change


def rows_exchanged(trainer: Any, result: Any) -> Any:
    """Completions and their masks are those of the next sample."""
    prompts, ids, mask, *rest = result
    return (prompts, ids[1:] + ids[:1], mask[1:] + mask[:1], *rest)


TWO_GROUPS = {"per_device_train_batch_size": 8}
FAULTS: dict[str, tuple[Callable[[Any], None], dict[str, Any], str, str]] = {
    "results of tools are trained": (
        of_loop(lambda mask, ids: ([1] * len(mask), ids)),
        {},
        "RLS518",
        "a tool, an environment or the chat template wrote are trained",
    ),
    "mask one token late": (of_loop(lambda mask, ids: ([1, *mask[:-1]], ids)), {}, "RLS518", "one token too late"),
    "mask one token early": (of_loop(lambda mask, ids: ([*mask[1:], 1], ids)), {}, "RLS518", "one token too early"),
    "first turn is not trained": (
        of_loop(lambda mask, ids: ([0] * mask.index(0) + mask[mask.index(0) :], ids)),
        {},
        "RLS518",
        "sampled tokens are not trained",
    ),
    "end of a turn is not trained": (
        of_loop(lambda mask, ids: ([*mask[: mask.index(0) - 1], *mask[mask.index(0) :], 1][: len(ids)], ids)),
        {},
        "RLS518",
        "one token too early",
    ),
    "opposite mask": (
        of_loop(lambda mask, ids: ([1 - one for one in mask], ids)),
        {},
        "RLS518",
        "are trained and sampled ones are not",
    ),
    "last turn left out": (
        of_loop(lambda mask, ids: (mask[: spans(mask)[1]], ids[: spans(mask)[1]])),
        {},
        "RLS306",
        "turn 2 was left out",
    ),
    "first turn left out": (
        of_loop(lambda mask, ids: (mask[mask.index(0) :], ids[mask.index(0) :])),
        {},
        "RLS306",
        "turn 1 was left out",
    ),
    "turns exchanged": (of_loop(swapped), {}, "RLS306", "turn 2 stands in the place of turn 1"),
    "result of a tool is another": (
        of_loop(other_result),
        {},
        "RLS306",
        "turn 2 was sampled behind other tokens than those before it",
    ),
    "result of a tool is left out": (
        of_loop(without_result),
        {},
        "RLS306",
        "turn 2 was sampled behind other tokens than those before it",
    ),
    "turns are encoded again": (
        from_second("_generate_single_turn", encoded_again),
        {},
        "RLS306",
        "turn 2 was decoded and encoded again",
    ),
    "prompts of other rows": (
        from_second("_generate", rolled(0)),
        TWO_GROUPS,
        "RLS306",
        "it has the prompt of sample 4",
    ),
    "completions of other rows": (
        from_second("_generate", rows_exchanged),
        {},
        "RLS306",
        "turn 1 is one of sample 1",
    ),
}
"""By name: the fault, further settings, the rule that finds it, and what it says."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_its_first_rollout_by_name(name: str, tmp_path: Path) -> None:
    fault, settings, code, said = FAULTS[name]
    report = multi_turn_run(tmp_path, tools=[multiply], fault=fault, **settings)
    found = [finding for finding in report.findings if finding.code == code]
    assert found, problems(report)
    assert said in found[0].observed, found[0].observed
    retokenised = name == "turns are encoded again"  # its method runs twice in each rollout
    assert found[0].where.rollout == (0 if retokenised else 1)
    assert report.verdict == "FAIL"
    others = [other for other in report.findings if other.severity != "info" and other.code != code]
    assert others == [], problems(report)


OF_FUNCTIONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "turns are encoded again": (
        {"rollout_func": conversation_rollout(again=True), "script": speaking},
        "RLS306",
        "turn 1 was decoded and encoded again",
    ),
    "log-probs one token late": (
        {
            "rollout_func": conversation_rollout(log_probs=lambda right: [0.0, *right[:-1]]),
            "script": silent,
            "max_completion_length": 12,
        },
        "RLS305",
        "those of the token before it",
    ),
    "no env_mask": (
        {"rollout_func": conversation_rollout(masked=False), "script": speaking},
        "RLS518",
        "the chat template wrote are trained",
    ),
    "thoughts of earlier turns are left out": (
        {"rollout_func": conversation_rollout(whole_template=True), "kind": "Qwen 3", "script": thoughtful},
        "RLS306",
        "turn 2 did not see the thoughts of earlier turns, which the chat template leaves out",
    ),
    "the whole conversation is encoded for each turn": (
        {"rollout_func": conversation_rollout(whole_template=True), "script": speaking},
        "RLS306",
        "turn 2 saw the same text as other tokens: a turn before it was decoded and encoded again",
    ),
}
"""Mistakes of functions of rollouts that people write."""


@pytest.mark.parametrize("name", OF_FUNCTIONS)
def test_a_mistake_of_a_function_of_rollouts_is_named(name: str, tmp_path: Path) -> None:
    settings, code, said = OF_FUNCTIONS[name]
    report = multi_turn_run(tmp_path, **settings)
    found = [finding for finding in report.findings if finding.severity != "info"]
    assert [finding.code for finding in found] == [code], problems(report)
    assert said in found[0].observed
    assert found[0].where.rollout == 0
    assert "4 of 4 samples" in found[0].observed


def log_probs_rolled(trainer: Any, result: Any) -> Any:
    """What `_generate` gives of log-probs is one token early."""
    parts = list(result)
    parts[4] = [[*one[1:], 0.0] for one in parts[4]]
    return tuple(parts)


def test_log_probs_that_trl_hands_on_are_those_of_the_function(tmp_path: Path) -> None:
    settings = {"rollout_func": conversation_rollout(log_probs=list), "script": silent, "max_completion_length": 12}
    report = multi_turn_run(tmp_path, fault=from_second("_generate", log_probs_rolled), **settings)
    [found] = [finding for finding in report.findings if finding.severity != "info"]
    assert (found.code, found.where.rollout) == ("RLS305", 1)
    assert found.observed == "others in 4 of 4 samples: those of the token after it"
