"""Loops of one's own over the client: healthy ones are silent, and mistakes are found at their rollout with their cause."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tinker
from tinker.lib.public_interfaces.training_client import TrainingClient

from rlstep_hooks import Schedule, StepAuditError, StepAuditTinker
from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.tinker.observe import boundary
from tests.systems.tinker.loops import ANSWERS, LOOPS, PROMPTS, RATE, datum, gold, reward
from tests.systems.tinker.tiny import served

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report

ROOT = Path(__file__).parents[3]
UPDATES = {"grpo": (4, 4), "ppo": (3, 12), "ahead": (5, 5), "warmed": (3, 3), "recomputed": (3, 6), "best": (3, 3)}
"""Rollouts and updates of each loop."""
COMPARED = {
    # What must have been compared in a healthy loop that says its plan.
    "grpo": (
        "RLS204",
        "RLS207",
        "RLS305",
        "RLS306",
        "RLS402",
        "RLS403",
        "RLS410",
        "RLS502",
        "RLS518",
        "RLS605",
        "RLS801",
    ),
    "ppo": ("RLS204", "RLS207", "RLS305", "RLS306", "RLS402", "RLS403", "RLS502", "RLS605", "RLS801"),
    "ahead": ("RLS204", "RLS207", "RLS305", "RLS306", "RLS402", "RLS502", "RLS605", "RLS801"),
    "warmed": ("RLS204", "RLS207", "RLS208", "RLS305", "RLS306", "RLS402", "RLS403", "RLS502", "RLS518", "RLS801"),
    "recomputed": ("RLS204", "RLS303", "RLS305", "RLS306", "RLS307", "RLS402", "RLS502", "RLS801"),
    "best": ("RLS204", "RLS306", "RLS402", "RLS403", "RLS605", "RLS801"),
}
FAULTS: tuple[tuple[str, str, str, int, str], ...] = (
    # Loop, mistake, the rule that finds it, its rollout, and a word of what is said.
    ("grpo", "first sampler", "RLS402", 1, "1 update behind"),
    ("grpo", "samples left out", "RLS207", 2, "13 samples"),
    ("grpo", "a sample twice", "RLS502", 2, "trained 2 times"),
    ("grpo", "rate", "RLS605", 2, "0.005"),
    ("grpo", "another loss", "RLS101", 2, "ppo"),
    ("grpo", "beta", "RLS101", 0, "beta2"),
    ("grpo", "forward_backward twice", "RLS502", 2, "trained 2 times"),
    ("grpo", "no step", "RLS204", 3, "a rollout"),
    ("grpo", "two steps", "RLS203", 2, "after 0 micro-batches"),
    ("grpo", "temperature", "RLS410", 0, "temperature 0.5"),
    ("grpo", "last token", "RLS306", 2, "other tokens"),
    ("grpo", "prompt cut", "RLS306", 2, "prompts"),
    ("grpo", "zeros", "RLS305", 2, "other old log-probs"),
    ("grpo", "log-probs of the next token", "RLS305", 2, "other old log-probs"),
    ("grpo", "log-probs of others", "RLS305", 2, "other old log-probs"),
    ("grpo", "advantage of the prompt", "RLS518", 2, "others in"),
    ("grpo", "targets not shifted", "RLS306", 2, "other tokens"),
    ("ppo", "mini-batch twice", "RLS502", 1, "trained 3 times"),
    ("ppo", "one pass", "RLS502", 1, "trained less often"),
    ("ppo", "bounds", "RLS101", 1, "{}"),
    ("ppo", "rate by rollout", "RLS605", 0, "0.01"),
    ("ppo", "old path", "RLS402", 2, "4 updates behind"),
    ("ppo", "shifted", "RLS305", 1, "other old log-probs"),
    ("ahead", "stale", "RLS402", 3, "3 updates behind"),
    ("ahead", "no warm-up", "RLS605", 0, "0.01"),
    ("warmed", "base", "RLS402", 0, "not the policy"),
    ("warmed", "step between", "RLS203", 1, "after 0 micro-batches"),
    ("warmed", "another user", "RLS306", 1, "prompts"),
    ("warmed", "user trained", "RLS518", 1, "others in"),
    ("recomputed", "recomputed each time", "RLS307", 0, "lag 0"),
    ("recomputed", "kept", "RLS305", 1, "other old log-probs"),
    ("best", "rate at zero", "RLS605", 0, "0"),
)
BY_ITSELF = frozenset(
    (
        *(
            "last token",
            "prompt cut",
            "zeros",
            "log-probs of the next token",
            "log-probs of others",
            "targets not shifted",
        ),
        *("advantage of the prompt", "shifted", "another user", "user trained"),
    )
)
"""Mistakes that a call shows by itself, whatever the plan is."""
SERVER = (
    # Loop, fault of the server, the rule that finds it, and its rollout. At a ratio of 1 a loss of centred advantages is 0 anyway;
    # the first sampler of ppo was made before the audit, and nobody knows its weights.
    ("recomputed", "loss_sign", "RLS801", 0),
    ("best", "loss_halved", "RLS801", 0),
    ("grpo", "sampler_keeps_first_weights", "RLS403", 1),
    ("ppo", "log_probs_shifted", "RLS403", 1),
)


def _run(home: Path, loop: str, fault: str = "", **given: Any) -> Report:
    with served(home, fault) as address, tinker.ServiceClient(base_url=address) as service:
        audit = LOOPS[loop](service, **given)
    report: Report = audit.report
    return report


def _problems(report: Report) -> list[Any]:
    return [found for found in report.findings if found.severity != "info"]


@pytest.mark.parametrize("loop", LOOPS)
def test_healthy(home: Path, loop: str) -> None:
    """A loop that says its plan passes, and what the documents promise was compared; one that says nothing has no finding."""
    report = _run(home, loop)
    assert _problems(report) == []
    assert (report.verdict, (report.counts.rollouts, report.counts.updates)) == ("PASS", UPDATES[loop])
    passed = {rule.code for rule in report.rules if rule.verdict == "PASS"}
    assert set(COMPARED[loop]) <= passed, set(COMPARED[loop]) - passed
    bare = _run(home, loop, audit="bare")
    assert _problems(bare) == []
    assert (bare.verdict, bare.counts.updates) == ("NOT_EVALUATED", UPDATES[loop][1])
    assert "did not say its plan" in bare.not_evaluated["order"]
    assert {rule.code for rule in bare.rules if rule.verdict == "PASS"} >= {"RLS306", "RLS801"}


@pytest.mark.parametrize(("loop", "broken", "code", "rollout", "said"), FAULTS)
def test_mistake(home: Path, loop: str, broken: str, code: str, rollout: int, said: str) -> None:
    """The rule finds it there, and names it; a loop that says nothing has the same finding where a call shows it by itself."""
    report = _run(home, loop, broken=broken)
    found = [each for each in _problems(report) if each.code == code]
    assert [(each.where.rollout, said in f"{each.expected} {each.observed}") for each in found][:1] == [
        (rollout, True)
    ], report.findings
    if broken in BY_ITSELF:
        bare = _run(home, loop, broken=broken, audit="bare")
        assert (bare.verdict, [each.code for each in _problems(bare)][:1]) == ("FAIL", [code]), bare.findings


@pytest.mark.parametrize(("loop", "fault", "code", "rollout"), SERVER)
def test_fault_of_a_server(home: Path, loop: str, fault: str, code: str, rollout: int) -> None:
    """What the service is asked for is right, and what comes back is not."""
    report = _run(home, loop, fault)
    assert [each.where.rollout for each in _problems(report) if each.code == code][:1] == [rollout], report.findings


def test_the_client_is_as_before(home: Path) -> None:
    """The hooks that a block places are gone with it, in a process that `rlstep run` did not start; "raise" ends the loop."""
    boundary.detach()
    before = dict(vars(TrainingClient))
    try:
        with served(home) as address:
            client = _client(address)
            with pytest.raises(StepAuditError):
                _audited(client, Schedule.ppo(actors=1, steps=2), rounds=20, on_fail="raise", learning_rate=RATE / 2)
        assert {name: of for name, of in vars(TrainingClient).items() if before.get(name) is not of} == {}
    finally:
        boundary.place()


def _client(address: str) -> Any:
    return tinker.ServiceClient(base_url=address).create_lora_training_client(base_model="tiny/model").result()


def _audited(client: Any, plan: Schedule, *, rounds: int, **told: Any) -> list[float]:
    with StepAuditTinker(client, plan, log_dir=None, listeners=(), **told):
        return _train(client, rounds)


def _train(client: Any, rounds: int) -> list[float]:
    """The losses of a small loop."""
    losses = []
    for _ in range(rounds):
        sampler = client.save_weights_and_get_sampling_client().result()
        settings = tinker.types.SamplingParams(max_tokens=5)
        drawn = sampler.sample(tinker.types.ModelInput.from_ints(PROMPTS[0]), 2, settings).result().sequences
        data = [datum(PROMPTS[0], list(one.tokens), list(one.logprobs), reward(one.tokens)) for one in drawn]
        losses.append(client.forward_backward(data, "importance_sampling").result().metrics["loss:sum"])
        client.optim_step(tinker.types.AdamParams(learning_rate=RATE)).result()
    return losses


def test_a_loop_that_trains_nothing_drawn_is_not_judged(home: Path) -> None:
    """Supervision alone has nothing that this judges, and the report says so."""
    with served(home) as address:
        client = _client(address)
        with StepAuditTinker(client, log_dir=None, listeners=()) as audit:
            for _ in range(2):
                client.forward_backward([gold(PROMPTS[0], ANSWERS[0])], "cross_entropy").result()
                client.optim_step(tinker.types.AdamParams(learning_rate=RATE)).result()
    assert audit.report.verdict == "NOT_EVALUATED"
    assert "no forward_backward trained" in audit.report.not_evaluated["order"]


def test_training_is_the_same_with_an_audit(home: Path) -> None:
    """Losses are bit for bit those of the same loop without one."""
    with served(home) as address:
        plain = _train(_client(address), rounds=3)
    with served(home) as address:
        assert _audited(_client(address), Schedule.ppo(actors=1, steps=2), rounds=3) == plain


SCRIPT = """
import sys
import tinker
from tests.systems.tinker.loops import grpo

grpo(tinker.ServiceClient(base_url=sys.argv[1]), audit="none", broken=sys.argv[2], rounds=3)
"""


@pytest.mark.parametrize("broken", ["", "last token"])
def test_a_script_that_says_nothing(home: Path, tmp_path: Path, broken: str) -> None:
    """`rlstep run` on a script of somebody's own: recorded, judged where a call shows it, and not evaluated otherwise."""
    record, script = tmp_path / "record", tmp_path / "loop.py"
    script.write_text(SCRIPT)
    own = [sys.executable, "-c", "import sys; from rlstep_hooks.cli import main; sys.exit(main())"]
    with served(home) as address:
        command = [*own, "run", "--strict", "--dir", str(record), "--", sys.executable, str(script), address, broken]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=home, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    report = report_of(record, None, deviations_of=index.deviations_of)
    assert (report.counts.rollouts, report.counts.updates) == (3, 3), done.stderr[-3000:]
    if broken:
        assert (done.returncode, report.verdict, [found.code for found in _problems(report)][:1]) == (
            1,
            "FAIL",
            ["RLS306"],
        )
    else:
        assert (done.returncode, report.verdict, _problems(report)) == (2, "NOT_EVALUATED", []), done.stderr[-3000:]
