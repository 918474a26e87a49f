"""Where each trained token of ms-swift comes from, and what its rewards were given for, in one turn and in several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.testing.trl_faults import replace_method
from tests.systems.swift import tiny
from tests.systems.swift.server import SETTINGS, serve
from tests.systems.trl.helpers import codes, explained, problems

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

ASKS = {"multi_turn_scheduler": "asks", "max_turns": 2, "template": "rounds"}
GOES = {"multi_turn_scheduler": "goes", "max_turns": 2, "template": "rounds"}
FAR = {"RLS403"}
"""What the distance of the stand-in for the engine is, rightly, called."""
SERVED = SETTINGS | {"rollout_importance_sampling_mode": "token_truncate"}


def audited(folder: Path, fault: Callable[[Any], None] | None = None, **settings: Any) -> Report:
    def apply(trainer: Any) -> None:
        if settings.get("use_vllm"):
            trainer.vllm_client.belongs_to(trainer)
        if fault is not None:
            fault(trainer)

    audit = StepAuditCallback(log_dir=None, listeners=())
    tiny.train(folder, [audit], apply=apply, **settings)
    return audit.report


def outcome(report: Report, code: str) -> Any:
    return next(rule for rule in report.rules if rule.code == code)


HEALTHY: dict[str, dict[str, Any]] = {
    "one turn": {},
    "one turn, one micro-batch": {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 8},
    "one turn, a server": SERVED,
    "one turn, several functions": {"reward_funcs": ["tiny", "other", "later"]},
    "one turn, behind a prefix": {"template": "rounds", "response_prefix": " so now "},
    "two turns": ASKS,
    "two turns, behind a prefix": ASKS | {"response_prefix": " so now "},
    "three turns, a server": SERVED | ASKS | {"max_turns": 3},
    "an answer that goes on": GOES,
    "an answer that goes on, a server": SERVED | GOES,
    "two turns of which the last is trained": ASKS | {"loss_scale": "last_round"},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_turns_say_nothing(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch)
    report = audited(folder, **HEALTHY[name])
    assert codes(report) <= FAR, problems(report)
    for code in ("RLS306", "RLS515", "RLS518"):
        assert outcome(report, code).verdict == "PASS", (code, outcome(report, code))
    assert bool(outcome(report, "RLS515").missed) == ("goes on" in name)
    assert outcome(report, "RLS518").checks >= 5
    if "a server" in name:
        assert outcome(report, "RLS312").checks >= 10
        assert outcome(report, "RLS305").verdict == "PASS"


def test_an_end_that_nobody_sampled_is_a_known_deviation(folder: Path) -> None:
    report = audited(folder, **(ASKS | {"template": "ended"}))
    assert codes(report) == {"RLS518"}, problems(report)
    assert explained(report) == {"swift-ends-of-cut-turns"}
    assert report.verdict == "FAIL"


def test_a_template_of_one_round_is_not_called_right(folder: Path) -> None:
    """ms-swift then asks for each turn without those before it, and trains the last one alone."""
    report = audited(folder, **(ASKS | {"template": "dummy"}))
    assert problems(report) == []
    assert "all but the last round" in report.not_evaluated["RLS518"]


def test_turns_that_a_server_makes_are_not_called_right(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch)

    def in_server(trainer: Any) -> None:
        trainer.enable_server_multi_turn = True

    report = audited(folder, in_server, **(SERVED | {"vllm_server_pass_dataset": "true"}))
    assert codes(report) <= FAR, problems(report)
    assert "in the server" in report.not_evaluated["RLS518"]


def before_training(change: Callable[[list[Any]], Any]) -> Callable[[Any], None]:
    """A fault: the samples are changed once they are scored, from the second rollout on."""

    def fault(trainer: Any) -> None:
        calls = iter(range(10**9))

        def prepares(original: Any, samples: Any) -> Any:
            if next(calls):
                change(samples)
            return original(samples)

        replace_method(trainer, "_prepare_batch_inputs", prepares)

    return fault


def turns_of(sample: Any) -> list[list[int]]:
    """The tokens of its turns, as a list of lists."""
    ids = sample.response_token_ids
    return [list(ids)] if isinstance(ids[0], int) else [list(turn) for turn in ids]


def tokens_of_the_next(samples: list[Any]) -> None:
    kept = [(sample.response_token_ids, sample.response_loss_mask) for sample in samples]
    for sample, (ids, mask) in zip(samples, kept[1:] + kept[:1], strict=True):
        sample.response_token_ids, sample.response_loss_mask = ids, mask


def first_token_other(samples: list[Any]) -> None:
    for sample in samples:
        turns = turns_of(sample)
        turns[-1][0] = 5 if turns[-1][0] != 5 else 6
        sample.response_token_ids = turns


def log_probs_shifted(samples: list[Any]) -> None:
    for sample in samples:
        sample.rollout_logprobs = [[*turn[1:], turn[0]] for turn in sample.rollout_logprobs]


def log_probs_of_the_next(samples: list[Any]) -> None:
    """Those of another sample that has as many."""
    by_length: dict[int, list[Any]] = {}
    for sample in samples:
        by_length.setdefault(sum(map(len, sample.rollout_logprobs)), []).append(sample)
    for alike in by_length.values():
        kept = [sample.rollout_logprobs for sample in alike]
        for sample, values in zip(alike, kept[1:] + kept[:1], strict=True):
            sample.rollout_logprobs = values


def ends_that_nobody_sampled(samples: list[Any]) -> None:
    for sample in samples:
        sample.add_eos = True


def changed_turn(change: Callable[[list[int]], list[int]], *, mask: bool = False) -> Callable[[list[Any]], None]:
    """The first turn of each sample, or its mask, is another."""

    def apply(samples: list[Any]) -> None:
        name = "response_loss_mask" if mask else "response_token_ids"
        for sample in samples:
            first, *rest = getattr(sample, name)
            setattr(sample, name, [change(list(first)), *rest])

    return apply


def other_question(samples: list[Any]) -> None:
    """What the environment said between the turns is another text in the rows."""
    for sample in samples:
        for message in sample.messages:
            if message["role"] == "user" and str(message["content"]).startswith("and "):
                message["content"] = "but 7"


TOKENS: dict[str, tuple[Callable[[Any], None], dict[str, Any], str, str]] = {
    "tokens of the next sample": (before_training(tokens_of_the_next), {}, "RLS306", "turn 1 is one of sample 1"),
    "another token": (before_training(first_token_other), {}, "RLS306", "turn 1 has other tokens"),
    "log-probs one token early": (before_training(log_probs_shifted), SERVED, "RLS305", "those of the token after it"),
    "log-probs of another sample": (
        before_training(log_probs_of_the_next),
        SERVED,
        "RLS305",
        "other ones than were handed over",
    ),
    "another token in the first of two turns": (
        before_training(changed_turn(lambda ids: [*ids[:-1], 5 if ids[-1] != 5 else 6])),
        ASKS,
        "RLS306",
        "turn 1 has other tokens",
    ),
    "the first of two turns is not trained": (
        before_training(changed_turn(lambda mask: [0] * len(mask), mask=True)),
        ASKS,
        "RLS518",
        "sampled tokens are not trained",
    ),
    "another question between two turns": (
        before_training(other_question),
        ASKS,
        "RLS306",
        "turn 2 was sampled behind other tokens",
    ),
    "turns of the next sample": (before_training(tokens_of_the_next), ASKS, "RLS306", "turn 1 is one of sample 1"),
    "log-probs one token early in two turns": (
        before_training(log_probs_shifted),
        SERVED | ASKS,
        "RLS305",
        "",
    ),
    "a scheduler's text is trained": (
        before_training(changed_turn(lambda mask: [1] * len(mask), mask=True)),
        GOES,
        "RLS518",
        "a tool, an environment or the chat template wrote are trained",
    ),
}


@pytest.mark.parametrize("name", TOKENS)
def test_a_fault_of_tokens_is_named(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, settings, code, said = TOKENS[name]
    serve(monkeypatch)
    report = audited(folder, fault, **settings)
    found = [finding for finding in report.findings if finding.code == code]
    assert found, problems(report)
    assert said in found[0].observed, found[0].observed
    assert found[0].where.rollout == 1


def handed(change: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> Callable[[Any], None]:
    """A fault: what the first reward function is handed is changed."""

    def fault(trainer: Any) -> None:
        def scores(original: Any, samples: Any) -> Any:
            from swift.rl_core import grpo_algorithm

            module, compute = (
                __import__("swift.rlhf_trainers.grpo_trainer", fromlist=["x"]),
                grpo_algorithm.score_completions,
            )

            def changed(samples: Any, **settings: Any) -> Any:
                return compute(change(samples, settings), **settings)

            module.score_completions = changed
            try:
                return original(samples)
            finally:
                module.score_completions = compute

        replace_method(trainer, "_compute_rewards_per_func", scores)

    return fault


def with_(samples: list[Any], **changes: Callable[[int], Any]) -> list[Any]:
    import copy

    copies = [copy.copy(sample) for sample in samples]
    for place, sample in enumerate(copies):
        for name, of in changes.items():
            setattr(sample, name, of(place))
    return copies


def texts_of_the_next(samples: list[Any], settings: Any) -> list[Any]:
    return with_(
        samples, messages=lambda at: [*samples[at].messages[:-1], samples[(at + 1) % len(samples)].messages[-1]]
    )


def texts_cut(samples: list[Any], settings: Any) -> list[Any]:
    def cut(at: int) -> Any:
        last = samples[at].messages[-1]
        return [*samples[at].messages[:-1], last | {"content": str(last["content"])[:3]}]

    return with_(samples, messages=cut)


def columns_of_the_next(samples: list[Any], settings: Any) -> list[Any]:
    return with_(samples, extra=lambda at: samples[(at + 4) % len(samples)].extra)


def prompts_of_the_next(samples: list[Any], settings: Any) -> list[Any]:
    return with_(
        samples, messages=lambda at: [*samples[(at + 4) % len(samples)].messages[:-1], samples[at].messages[-1]]
    )


def rewards_rolled(trainer: Any) -> None:
    """Each sample has the reward of the one before."""
    module = __import__("swift.rlhf_trainers.grpo_trainer", fromlist=["x"])

    def scores(original: Any, samples: Any) -> Any:
        compute = module.score_completions
        module.score_completions = lambda *given, **settings: compute(*given, **settings).roll(1, 0)
        try:
            return original(samples)
        finally:
            module.score_completions = compute

    replace_method(trainer, "_compute_rewards_per_func", scores)


REWARDS: dict[str, tuple[Callable[[Any], None], dict[str, Any]]] = {
    "texts of the next sample": (handed(texts_of_the_next), {}),
    "texts that are cut": (handed(texts_cut), {}),
    "columns of another row": (handed(columns_of_the_next), {}),
    "prompts of another row": (handed(prompts_of_the_next), {}),
    "rewards of the sample before": (rewards_rolled, {}),
    "last texts of the next sample": (handed(texts_of_the_next), ASKS),
}


@pytest.mark.parametrize("name", REWARDS)
def test_a_fault_of_rewards_is_found(folder: Path, name: str) -> None:
    fault, settings = REWARDS[name]
    report = audited(folder, fault, **settings)
    found = [finding for finding in report.findings if finding.code == "RLS515"]
    assert found, problems(report)
    assert found[0].where.rollout == 0
    assert report.verdict == "FAIL"
