"""Where each trained token comes from when vLLM samples, in one turn and in several: what the engine was asked for and gave."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

from tests.systems.trl.conftest import RELEASE

if Version("1.16") > RELEASE:
    pytest.skip("an engine's answers are joined with rows in TRL 1.16 and later", allow_module_level=True)

from rlstep_hooks.systems.trl.observe.engine_answers import engine_calls
from tests.systems.trl.helpers import problems
from tests.systems.trl.multi_turn import Room, multi_turn_run, multiply, silent, speaking
from tests.systems.trl.spoken_engine import with_engine
from tests.systems.trl.test_turns import encoded_again, from_second, of_loop, other_result, outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from tests.systems.trl.spoken_engine import Answer

MODES = ("server", "colocate")
SEVERAL: dict[str, dict[str, Any]] = {
    "tools": {"tools": [multiply], "script_settings": {"calls": 2, "some": True}},
    "environment": {"environment_factory": Room, "script_settings": {"calls": 2, "tool": "look"}},
    "truncated in the second turn": {"tools": [multiply], "max_completion_length": 160},
}
ONE: dict[str, Any] = {"script": silent, "max_completion_length": 12}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    """Trains with a stand-in for vLLM, after a fault of what it tells or of the trainer, if there is one."""

    def train(
        mode: str,
        told: Callable[[list[Answer]], list[Answer]] = list,
        fault: Callable[[Any], None] = lambda trainer: None,
        **settings: Any,
    ) -> Report:
        engine = with_engine(mode, monkeypatch, told)

        def apply(trainer: Any) -> None:
            engine(trainer)
            fault(trainer)

        # Two passes, so that old log-probs are planned although the engine comes after the plan.
        return multi_turn_run(tmp_path, fault=apply, **{"num_iterations": 2, "max_steps": 6} | settings)

    return train


def findings(report: Report) -> list[Any]:
    """Those that are more than an information. A stand-in for an engine of this process does not tell what weights it holds."""
    return [finding for finding in report.findings if finding.severity != "info"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SEVERAL)
def test_healthy_turns_of_an_engine_say_nothing(run: Callable[..., Report], name: str, mode: str) -> None:
    report = run(mode, **SEVERAL[name])
    assert findings(report) == []
    for code in ("RLS305", "RLS306", "RLS518"):
        assert outcome(report, code).verdict == "PASS", (code, outcome(report, code))
    assert outcome(report, "RLS518").checks >= 2


@pytest.mark.parametrize("mode", MODES)
def test_one_turn_of_an_engine_says_nothing(run: Callable[..., Report], mode: str) -> None:
    report = run(mode, **ONE)
    assert findings(report) == []
    assert outcome(report, "RLS306").verdict == outcome(report, "RLS518").verdict == "PASS"


def asking_rollout(*, again: bool = False, log_probs: Callable[[list[float]], list[float]] = list) -> Any:
    """A function of rollouts that asks the engine itself, in two turns.

    Args:
        again: Whether each turn is decoded and encoded again.
        log_probs: Makes those of a turn that are handed over of the right ones.
    """

    def ask(generation: Any, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
        if generation.vllm_client is not None:
            told = generation.vllm_client.generate(prompts)
            of_tokens = [[one for (one,) in of] for of in told["logprobs"]]
            return list(zip(told["completion_ids"], of_tokens, strict=True))
        answers = generation.llm.generate([{"prompt_token_ids": ids} for ids in prompts])
        return [
            (of.token_ids, [tell[one].logprob for one, tell in zip(of.token_ids, of.logprobs, strict=True)])
            for (of,) in (answer.outputs for answer in answers)
        ]

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        tokenizer = trainer.processing_class
        begun = [tokenizer.apply_chat_template(of, add_generation_prompt=True, return_dict=False) for of in prompts]
        found: dict[str, Any] = {"prompt_ids": begun, "completion_ids": [[] for _ in begun]}
        found |= {"logprobs": [[] for _ in begun], "env_mask": [[] for _ in begun]}
        for turn in range(2):
            asked = [before + ids for before, ids in zip(begun, found["completion_ids"], strict=True)]
            for place, (ids, values) in enumerate(ask(trainer.vllm_generation, asked)):
                given = tokenizer.encode(tokenizer.decode(ids)) if again else ids
                said = tokenizer.encode("\n<|im_start|>user\nso\n<|im_start|>assistant\n") if turn == 0 else []
                found["completion_ids"][place] += given + said
                found["logprobs"][place] += (log_probs(values) + [0.0] * len(given))[: len(given)] + [0.0] * len(said)
                found["env_mask"][place] += [1] * len(given) + [0] * len(said)
        return found

    return rollout


@pytest.mark.parametrize("mode", MODES)
def test_a_function_that_asks_the_engine_itself_says_nothing(run: Callable[..., Report], mode: str) -> None:
    report = run(mode, rollout_func=asking_rollout(), script=speaking)
    assert findings(report) == []
    for code in ("RLS305", "RLS306", "RLS518"):
        assert outcome(report, code).verdict == "PASS", (code, outcome(report, code))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"again": True}, "RLS306", "turn 1 was decoded and encoded again"),
        ({"log_probs": lambda right: [0.0, *right[:-1]]}, "RLS305", "those of the token before it"),
    ],
)
def test_a_mistake_of_a_function_that_asks_the_engine_is_named(
    run: Callable[..., Report], settings: dict[str, Any], code: str, said: str, mode: str
) -> None:
    report = run(mode, rollout_func=asking_rollout(**settings), script=speaking)
    found = [finding for finding in findings(report) if finding.code == code]
    assert found, problems(report)
    assert said in found[0].observed, found[0].observed
    assert found[0].where.rollout == 0


def log_probs_rolled(trainer: Any, result: Any) -> Any:
    """What `_generate` gives of log-probs is one token early."""
    parts = list(result)
    parts[4] = [[*one[1:], 0.0] for one in parts[4]]
    return tuple(parts)


def log_probs_of_the_next(trainer: Any, result: Any) -> Any:
    """The log-probs of each call are those of the next sample, cut or filled up to its tokens."""
    ids, log_probs = result
    moved = log_probs[1:] + log_probs[:1]
    return ids, [(of + [0.0] * len(own))[: len(own)] for own, of in zip(ids, moved, strict=True)]


def encoded_again_with_log_probs(trainer: Any, result: Any) -> Any:
    ids, log_probs = encoded_again(trainer, result)
    return ids, [(of + [-1.0] * len(own))[: len(own)] for own, of in zip(ids, log_probs, strict=True)]


def answers_exchanged(trainer: Any) -> None:
    """What the engine's wrapper makes of the engine's answers stands in another order, from its second call on."""
    generation = trainer.vllm_generation
    original, calls = generation.generate, iter(range(10**9))

    def generate(*args: Any, **kwargs: Any) -> Any:
        first, ids, log_probs, tokens = original(*args, **kwargs)
        if next(calls):
            ids, log_probs = ids[1:] + ids[:1], log_probs[1:] + log_probs[:1]
        return first, ids, log_probs, tokens

    generation.generate = generate


def answers(owner: str, result: Any, prompts: Any = None) -> list[Any]:
    """What is read of one call of an engine: the prompt, the answer and its log-probs, for each request."""
    generation = SimpleNamespace(**{owner: SimpleNamespace(generate=print)})
    place = engine_calls(SimpleNamespace(vllm_generation=generation))
    assert place is not None
    call: Any = SimpleNamespace(result=result, argument=lambda name, place: prompts)
    return [(one.asked, one.given, one.log_probs) for one in place.read(call)]


def test_each_completion_of_a_prompt_is_a_request_and_has_the_log_probs_of_its_own_tokens() -> None:
    told = {
        "prompt_ids": [[1], [2]],
        "completion_ids": [[3], [4], [5, 6], []],
        "logprobs": [[[-0.5, -1.0]], [[-2.0]], [[-3.0], [None]], []],
        "logprob_token_ids": [[[7, 3]], [[4]], [[5], [6]], []],
    }
    first, second, third, fourth = answers("vllm_client", told)
    assert first == ([1], [3], [-1.0])
    assert second == ([1], [4], [-2.0])
    assert third[:2] == ([2], [5, 6])
    assert third[2][0] == -3.0
    assert third[2][1] != third[2][1]
    assert fourth == ([2], [], None)
    assert answers("vllm_client", told | {"completion_ids": [[3]], "logprobs": None}) == []


def test_a_prompt_is_what_the_engine_saw_but_for_the_places_of_images() -> None:
    output = SimpleNamespace(token_ids=[9], logprobs=None)
    result = [
        SimpleNamespace(prompt_token_ids=[2], outputs=[output]),
        SimpleNamespace(prompt_token_ids=[5, 5], outputs=[output]),
    ]
    prompts = [{"prompt_token_ids": [1, 2]}, {"prompt_token_ids": [5], "multi_modal_data": {"image": None}}]
    assert answers("llm", result, prompts) == [([2], [9], None), ([5], [9], None)]


FAULTS: dict[str, tuple[Callable[[Any], None], dict[str, Any], str, str]] = {
    "results of tools are trained": (
        of_loop(lambda mask, ids: ([1] * len(mask), ids)),
        {},
        "RLS518",
        "a tool, an environment or the chat template wrote are trained",
    ),
    "sampled tokens are not trained": (
        of_loop(lambda mask, ids: ([0] * mask.index(0) + mask[mask.index(0) :], ids)),
        {},
        "RLS518",
        "sampled tokens are not trained",
    ),
    "result of a tool is another": (of_loop(other_result), {}, "RLS306", "turn 2 was sampled behind other tokens"),
    "turns are encoded again": (
        from_second("_generate_single_turn", encoded_again_with_log_probs),
        {},
        "RLS306",
        "turn 2 was decoded and encoded again",
    ),
    "log-probs one token early": (from_second("_generate", log_probs_rolled), {}, "RLS305", "the token after it"),
    "log-probs of other samples": (
        from_second("_generate_single_turn", log_probs_of_the_next),
        {},
        "RLS305",
        "other ones than were handed over",
    ),
    "answers of other samples": (answers_exchanged, {}, "RLS306", "turn 2 is one of sample"),
    "answers of other samples in one turn": (answers_exchanged, ONE, "RLS306", "other tokens in 4 of 4 samples"),
}
"""By name: the fault, further settings, the rule that finds it, and what it says."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_an_engines_turns_is_named(run: Callable[..., Report], name: str) -> None:
    fault, settings, code, said = FAULTS[name]
    report = run("server", fault=fault, **({"tools": [multiply]} | settings if settings is not ONE else ONE))
    found = [finding for finding in report.findings if finding.code == code]
    assert found, problems(report)
    assert said in found[0].observed, found[0].observed
    assert found[0].where.rollout in (0, 1)
    assert report.verdict == "FAIL"
