"""From what people notice in a run to what its record says about each possible cause. Pure: a report in, answers out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.schedule import Schedule

State = Literal["found", "by design", "excluded", "not observed"]
"""Whether a cause is there: a rule found it; the plan itself makes it so; every rule that would have found it looked and passed; or
nobody could look."""


class Cause(msgspec.Struct, frozen=True):
    """One possible cause of a symptom."""

    words: str
    codes: tuple[str, ...]
    """The rules that find it."""
    design: str = ""
    """Name of the quantity of the plan that makes it so by design: a function in `_DESIGN`."""


class Symptom(msgspec.Struct, frozen=True):
    """What somebody notices."""

    name: str
    words: str
    causes: tuple[Cause, ...]


_ON_POLICY = Cause(
    "the plan trains each sample once, with the weights that computed its old log-probs", ("RLS102",), "on_policy"
)
_STUCK = Cause("old log-probs are the current ones, although the weights have changed", ("RLS302", "RLS310"))
_REFRESHED = Cause("old log-probs are computed again at each update, or by other weights", ("RLS303", "RLS307"))
_REGENERATED = Cause("samples are generated anew where they should be reused", ("RLS201",))
_NO_SIGNAL = Cause("all rewards of each group are equal, so every advantage is 0", ("RLS505",))
_NOTHING_MOVES = Cause("updates do not change the weights", ("RLS401", "RLS406", "RLS407", "RLS809"))
_RATE_ZERO = Cause("the learning rate is 0, or its schedule ends before the run", ("RLS601", "RLS603", "RLS605"))
_ADVANTAGES = Cause("advantages are not those of the rewards", ("RLS508", "RLS515", "RLS516", "RLS517"))
_STALE_SAMPLER = Cause(
    "rollouts are sampled with other weights than the policy's",
    ("RLS402", "RLS405", "RLS412", "RLS415", "RLS416", "RLS417", "RLS418"),
)
_OTHER_TEXT = Cause("rollouts are sampled with other settings, or by another model", ("RLS403", "RLS410", "RLS413"))
_ALTERED = Cause(
    "tokens, masks or old log-probs change between rollout and loss",
    ("RLS305", "RLS306", "RLS311", "RLS518", "RLS521", "RLS804"),
)
_LOSS = Cause("the loss, or the factor of its gradient, is not the documented one", ("RLS801", "RLS802", "RLS805"))
_STEP = Cause(
    "gradients, the optimizer's step, its moments or the clipped norm are not those documented",
    ("RLS806", "RLS807", "RLS808", "RLS810"),
)
_LEFT_OVER = Cause("gradients of the update before are added", ("RLS803",))
_FEWER_UPDATES = Cause("updates are missing or skipped", ("RLS203", "RLS204", "RLS210"))
_SIZES = Cause("rollouts, mini-batches or micro-batches have other sizes than planned", ("RLS101", "RLS207", "RLS208"))
_LENGTH = Cause("training or a data epoch ends at another time than planned", ("RLS205", "RLS206", "RLS511"))
_ROWS = Cause("rows are left out, or come again too early", ("RLS506", "RLS509", "RLS513"))
_REFERENCE = Cause("the reference changes, or its log-probs come from elsewhere", ("RLS308", "RLS411", "RLS414"))
_DRIFT = Cause("samples are trained at a larger lag than planned", ("RLS307", "RLS304"))
_NOT_ONE = Cause(
    "the trainer disagrees with itself: dropout, precision, another padding", ("RLS301", "RLS309", "RLS313")
)
_GROUPS = Cause("samples are not in groups of one prompt, or are repeated", ("RLS501", "RLS514", "RLS519"))
_BEYOND = Cause("passes over a rollout go on beyond the limit of the divergence", ("RLS213",))
_TICKS = Cause("the scheduler ticks at other times than updates", ("RLS602",))
_QUEUE = Cause("samples are lost in the queue, or taken from it twice", ("RLS520",))
_NOT_WEIGHED = Cause("the importance weights do not correct for the age of the samples", ("RLS312",))
_SERVED_AGAIN = Cause("rows are served again before their turn", ("RLS509",))
_RESUME = Cause("the checkpoint was not restored", ("RLS701", "RLS702"))

SYMPTOMS = (
    Symptom(
        "ratio-one",
        "the ratio is always 1 and nothing is clipped",
        (_ON_POLICY, _STUCK, _REFRESHED, _REGENERATED, _NOTHING_MOVES),
    ),
    Symptom("loss-zero", "the loss in the logs is 0", (_ON_POLICY, _NO_SIGNAL, _STUCK, _ADVANTAGES, _NOTHING_MOVES)),
    Symptom("kl-zero", "the KL to the reference stays 0", (_NOTHING_MOVES, _RATE_ZERO, _REFERENCE, _NO_SIGNAL)),
    Symptom(
        "kl-explodes",
        "the KL explodes, or training collapses",
        (
            _STALE_SAMPLER,
            _OTHER_TEXT,
            _DRIFT,
            _NOT_WEIGHED,
            _BEYOND,
            _NOT_ONE,
            _ALTERED,
            _LOSS,
            _STEP,
            _LEFT_OVER,
            _REFERENCE,
            _ADVANTAGES,
        ),
    ),
    Symptom(
        "fewer-steps",
        "there are fewer or more steps than expected",
        (_FEWER_UPDATES, _SIZES, _LENGTH, _REGENERATED, _ROWS),
    ),
    Symptom(
        "reward-flat",
        "the reward does not rise",
        (
            _NO_SIGNAL,
            _ADVANTAGES,
            _RATE_ZERO,
            _NOTHING_MOVES,
            _STALE_SAMPLER,
            _OTHER_TEXT,
            _ALTERED,
            _GROUPS,
            _LOSS,
            _STEP,
        ),
    ),
    Symptom(
        "entropy-falls",
        "the entropy collapses",
        (_OTHER_TEXT, _STALE_SAMPLER, _ADVANTAGES, _DRIFT, _GROUPS, _LOSS, _STEP),
    ),
    Symptom("rate-zero", "the learning rate is 0 before the end", (_RATE_ZERO, _TICKS, _LENGTH)),
    Symptom(
        "resume-worse",
        "a resumed run is worse than before",
        (_RESUME, _SERVED_AGAIN, _QUEUE, _RATE_ZERO, _STEP, _STALE_SAMPLER),
    ),
)


class CauseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a record says about one cause."""

    words: str
    state: State
    evidence: str
    """The finding; how many comparisons excluded it; or why it was not observed."""
    codes: tuple[str, ...]


class SymptomAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a record says about all causes of a symptom, what was found first."""

    name: str
    words: str
    causes: tuple[CauseAnswer, ...]

    @property
    def counted(self) -> str:
        """How many causes there are of each state: "1 found, 4 excluded"."""
        states = [cause.state for cause in self.causes]
        return ", ".join(f"{states.count(state)} {state}" for state in _ORDER if state in states)


_ORDER = ("found", "by design", "not observed", "excluded")


def why(report: Report, names: tuple[str, ...] = ()) -> list[SymptomAnswer]:
    """What a report says about symptoms.

    Args:
        report: The report of a run.
        names: Which symptoms; all if left out.

    Raises:
        KeyError: There is no symptom of that name.
    """
    known = {symptom.name: symptom for symptom in SYMPTOMS}
    return [_answer(known[name], report) for name in names or known]


def _answer(symptom: Symptom, report: Report) -> SymptomAnswer:
    causes = sorted((_cause(cause, report) for cause in symptom.causes), key=lambda each: _ORDER.index(each.state))
    return SymptomAnswer(name=symptom.name, words=symptom.words, causes=tuple(causes))


def _cause(cause: Cause, report: Report) -> CauseAnswer:
    design = _DESIGN[cause.design](report.schedule) if cause.design and report.schedule is not None else ""
    if cause.design:
        state: State = "by design" if design else "excluded" if report.schedule is not None else "not observed"
        evidence = design or (_lags(report.schedule) if report.schedule is not None else "the record has no plan")
        return CauseAnswer(words=cause.words, state=state, evidence=evidence, codes=cause.codes)
    found = [finding for finding in report.findings if finding.code in cause.codes and finding.severity != "info"]
    if found:
        first = found[0]
        evidence = f"{first.code} at {first.where}: {first.observed}"
        return CauseAnswer(words=cause.words, state="found", evidence=evidence, codes=cause.codes)
    outcomes = {outcome.code: outcome for outcome in report.rules if outcome.code in cause.codes}
    passed = [outcome for outcome in outcomes.values() if outcome.verdict == "PASS"]
    unknown = [outcome for outcome in outcomes.values() if outcome.verdict == "NOT_EVALUATED"]
    # A rule that had nothing to look at because the run never did it excludes its cause.
    if passed and all(outcome.idle for outcome in unknown):
        looked = ", ".join(f"{outcome.code} {number(outcome.checks, 'checks')}" for outcome in passed)
        return CauseAnswer(words=cause.words, state="excluded", evidence=looked, codes=cause.codes)
    reasons = dict.fromkeys(f"{outcome.code}: {outcome.reason}" for outcome in unknown) or {"no rule looked": None}
    looked = f"; {', '.join(outcome.code for outcome in passed)} passed" if passed else ""
    return CauseAnswer(words=cause.words, state="not observed", evidence="; ".join(reasons) + looked, codes=cause.codes)


def _on_policy(schedule: Schedule) -> str:
    """Lag 0 alone: the ratio is 1, and a loss of normalised advantages reads 0."""
    return "every micro-batch has lag 0: this is how the run is configured" if schedule.lags == (0,) else ""


def _lags(schedule: Schedule) -> str:
    return (
        f"the plan has lags {' '.join(map(str, schedule.lags))}" if schedule.lags else "the plan does not know the lags"
    )


_DESIGN = {"on_policy": _on_policy}
