"""From what people notice in a run to a conclusion: which machinery is excluded, what was measured, and what is left to change.

Pure: a report in, answers out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from rlstep_hooks.judge import signs, suspects
from rlstep_hooks.judge.links import links_of
from rlstep_hooks.judge.report import Report
from rlstep_hooks.judge.settings import RunSettings
from rlstep_hooks.judge.suspects import Left, left_of
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.judge.settings import Knob
    from rlstep_hooks.planning.schedule import Schedule

State = Literal["found", "by design", "not observed", "excluded", "not in this run"]
"""Whether a cause is there: a rule found it; the plan itself makes it so; nobody could look; every rule that would have found it looked
and passed; or the run never did what could go wrong."""


class Cause(msgspec.Struct, frozen=True):
    """One possible fault behind a symptom."""

    words: str
    codes: tuple[str, ...]
    """Codes of the rules that find the fault."""
    design: bool = False
    """Whether the plan itself may make it so: every micro-batch has lag 0."""


class Symptom(msgspec.Struct, frozen=True):
    """What somebody notices."""

    name: str
    words: str
    causes: tuple[Cause, ...]
    suspects: tuple[Callable[[Report, RunSettings], Left | None], ...] = ()
    """What is left where no fault was found."""
    sign: Callable[[Report], str] = signs.none
    """The numbers that show the symptom, in words; empty where none does."""
    words_of: Callable[[Report], str] | None = None
    """The symptom in words that depend on the run."""


_ON_POLICY = Cause(
    "the plan trains each sample once, with the weights that computed its old log-probs", ("RLS102",), design=True
)
_STUCK = Cause("old log-probs are the current ones, although the weights have changed", ("RLS302", "RLS310"))
_REFRESHED = Cause("old log-probs are computed again at each update, or by other weights", ("RLS303", "RLS307"))
_REGENERATED = Cause("rollouts come at other times than planned, or are missing", ("RLS201", "RLS202"))
_NO_SIGNAL = Cause("all rewards of each group are equal, so every advantage is 0", ("RLS505",))
_BUILT = Cause("the network, or the weights that it begins with, are not those configured", ("RLS420", "RLS423"))
_NOTHING_MOVES = Cause(
    "updates do not change the weights, or only a part of them", ("RLS401", "RLS406", "RLS407", "RLS408", "RLS809")
)
_WRITTEN_TO = Cause("something else than an update changes the weights", ("RLS404",))
_RATE_ZERO = Cause(
    "the learning rate is 0, or its schedule ends before the run", ("RLS601", "RLS603", "RLS604", "RLS605")
)
_ADVANTAGES = Cause("advantages are not those of the rewards", ("RLS508", "RLS515", "RLS516", "RLS517"))
_STALE_SAMPLER = Cause(
    "rollouts are sampled with other weights than the policy's",
    ("RLS402", "RLS405", "RLS412", "RLS415", "RLS416", "RLS417", "RLS418", "RLS422"),
)
_OTHER_TEXT = Cause(
    "rollouts are sampled with other settings, or by another model", ("RLS403", "RLS410", "RLS413", "RLS421")
)
_ALTERED = Cause(
    "tokens, masks or old log-probs change between rollout and loss",
    ("RLS305", "RLS306", "RLS311", "RLS518", "RLS521", "RLS522", "RLS804"),
)
_LOSS = Cause(
    "the loss, or the factor of its gradient, is not the documented one", ("RLS801", "RLS802", "RLS805", "RLS820")
)
_STEP = Cause(
    "gradients, the optimizer's step, its moments or the clipped norm are not those documented",
    ("RLS806", "RLS807", "RLS808", "RLS810", "RLS811", "RLS812", "RLS813"),
)
_UNSEEDED = Cause("the configured seed never reached the generators", ("RLS120",))
_RELEASE = Cause("a release that is installed has a known fault", ("RLS119",))
_LEFT_OVER = Cause("gradients of the update before are added", ("RLS803",))
_OTHER_UPDATES = Cause(
    "updates are missing, skipped, or made too early or at the wrong turn",
    ("RLS203", "RLS204", "RLS209", "RLS210", "RLS211", "RLS212", "RLS214"),
)
_SIZES = Cause(
    "rollouts, mini-batches or micro-batches have other sizes than planned", ("RLS101", "RLS113", "RLS207", "RLS208")
)
_LENGTH = Cause("training or a data epoch ends at another time than planned", ("RLS205", "RLS206", "RLS511"))
_ROWS = Cause("rows are left out, or come again too early", ("RLS506", "RLS509", "RLS510", "RLS512", "RLS513"))
_LOST = Cause("samples are lost, doubled, or belong to no rollout", ("RLS502", "RLS507", "RLS514"))
_EVALUATION = Cause("evaluation samples are trained, or scored on other completions", ("RLS503", "RLS504"))
_SILENT = Cause("a process has no record, or processes do or hold different things", ("RLS419", "RLS901", "RLS902"))
_REFERENCE = Cause(
    "the reference changes, or its log-probs come from elsewhere", ("RLS308", "RLS315", "RLS411", "RLS414")
)
_DRIFT = Cause("samples are trained at a larger lag than planned", ("RLS307", "RLS304"))
_NOT_ONE = Cause(
    "the trainer disagrees with itself: dropout, precision, another padding", ("RLS301", "RLS309", "RLS313", "RLS314")
)
_GROUPS = Cause("samples are not in groups of one prompt, or are repeated", ("RLS501", "RLS514", "RLS519", "RLS523"))
_BEYOND = Cause("passes over a rollout go on beyond the limit of the divergence", ("RLS213",))
_TICKS = Cause("the scheduler ticks at other times than updates", ("RLS602", "RLS610"))
_QUEUE = Cause("samples are lost in the queue, or taken from it twice", ("RLS520",))
_NOT_WEIGHED = Cause("the importance weights do not correct for the age of the samples", ("RLS312",))
_SERVED_AGAIN = Cause("rows are served again before their turn", ("RLS509",))
_RESUME = Cause("the checkpoint was not restored, or holds something else", ("RLS701", "RLS702", "RLS703"))

SYMPTOMS = (
    Symptom(
        "ratio-one",
        "the ratio is always 1 and nothing is clipped",
        (_ON_POLICY, _STUCK, _REFRESHED, _REGENERATED, _NOTHING_MOVES),
        (suspects.on_policy, suspects.ratio_moves, suspects.small_steps),
        signs.ratio_one,
    ),
    Symptom(
        "loss-zero",
        "the loss in the logs is 0",
        (_ON_POLICY, _NO_SIGNAL, _STUCK, _ADVANTAGES, _NOTHING_MOVES),
        (suspects.on_policy, suspects.equal_rewards, suspects.small_steps),
        signs.no_advantage,
    ),
    Symptom(
        "kl-zero",
        "the KL to the reference stays 0",
        (_NOTHING_MOVES, _RATE_ZERO, _REFERENCE, _NO_SIGNAL),
        (suspects.kl_is_off, suspects.kl_begins_at_zero, suspects.small_steps, suspects.equal_rewards),
        signs.kl_zero,
    ),
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
            _RELEASE,
            _STEP,
            _LEFT_OVER,
            _REFERENCE,
            _ADVANTAGES,
            _WRITTEN_TO,
        ),
        (
            suspects.large_steps,
            suspects.many_updates,
            suspects.gradient_spikes,
            suspects.no_reference,
            suspects.old_samples,
            suspects.engine_gap,
        ),
        signs.explodes,
    ),
    Symptom(
        "fewer-steps",
        "there are fewer or more steps than expected",
        (_OTHER_UPDATES, _SIZES, _LENGTH, _REGENERATED, _ROWS, _LOST),
        (suspects.as_planned,),
        signs.other_steps,
        signs.steps_in_words,
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
            _LOST,
            _LOSS,
            _STEP,
            _BUILT,
        ),
        (
            suspects.equal_rewards,
            suspects.step_size,
            suspects.reward_spread,
            suspects.few_updates,
            suspects.old_samples,
            suspects.engine_gap,
        ),
        signs.flat,
    ),
    Symptom(
        "entropy-falls",
        "the entropy collapses",
        (_OTHER_TEXT, _STALE_SAMPLER, _ADVANTAGES, _DRIFT, _GROUPS, _LOSS, _STEP),
        (
            suspects.large_steps,
            suspects.many_updates,
            suspects.no_entropy_bonus,
            suspects.no_reference,
            suspects.equal_rewards,
        ),
        signs.entropy_falls,
    ),
    Symptom(
        "rate-zero",
        "the learning rate is 0 before the end",
        (_RATE_ZERO, _TICKS, _LENGTH),
        (suspects.rate_ends,),
        signs.rate_zero,
    ),
    Symptom(
        "resume-worse",
        "a resumed run is worse than before",
        (_RESUME, _SERVED_AGAIN, _QUEUE, _RATE_ZERO, _STEP, _STALE_SAMPLER),
        (suspects.not_resumed, suspects.large_steps),
    ),
    Symptom(
        "evaluation-odd",
        "evaluation is much better or worse than training",
        (_EVALUATION, _OTHER_TEXT, _STALE_SAMPLER, _ROWS),
        (suspects.engine_gap, suspects.equal_rewards),
    ),
    Symptom(
        "samples-lost",
        "samples, rows or processes are missing, doubled or of somewhere else",
        (_LOST, _QUEUE, _ROWS, _SIZES, _EVALUATION, _SILENT),
        (suspects.samples_counted,),
    ),
    Symptom(
        "weights-odd",
        "weights change by themselves, or a part of the model does not learn",
        (_WRITTEN_TO, _NOTHING_MOVES, _LEFT_OVER, _REFERENCE, _STEP, _SILENT),
        (suspects.step_size,),
    ),
    Symptom(
        "runs-differ",
        "two runs of one configuration differ from the beginning",
        (_UNSEEDED, _BUILT, _ROWS),
        (suspects.other_order,),
    ),
)


class CauseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a record says about one fault."""

    words: str
    state: State
    evidence: str
    """The finding; how many comparisons excluded it; or why it was not observed."""
    codes: tuple[str, ...]
    explained_by: str = ""
    """Code of the finding that explains the one that was found; empty if it is a headline of its own."""


class SymptomAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a record says about a symptom, and the conclusion."""

    name: str
    words: str
    sign: str
    """The numbers that show the symptom; empty where none does."""
    conclusion: str
    """What follows from the answers, in one sentence."""
    causes: tuple[CauseAnswer, ...]
    """Possible faults, what was found first."""
    right: tuple[str, ...]
    """The links of the run that were checked for it and are right."""
    right_in_part: dict[str, str]
    """Links that are right where they were checked, with the share that was."""
    left: tuple[Left, ...]
    """Other explanations of the symptom, the likeliest first."""

    @property
    def counted(self) -> str:
        """How many causes there are of each state: "1 found, 4 excluded"."""
        states = [cause.state for cause in self.causes]
        return ", ".join(f"{states.count(state)} {state}" for state in _ORDER if state in states)

    @property
    def found(self) -> tuple[CauseAnswer, ...]:
        """The faults that were found."""
        return tuple(cause for cause in self.causes if cause.state == "found")

    @property
    def shown(self) -> bool:
        """Whether the record shows the symptom: by a fault, or by its numbers."""
        return bool(self.found or self.sign)


_ORDER = ("found", "by design", "not observed", "excluded", "not in this run")


def why(report: Report, names: tuple[str, ...] = (), *, knobs: Mapping[Knob, str] | None = None) -> list[SymptomAnswer]:
    """What a report says about symptoms.

    Args:
        report: The report of a run.
        names: Which symptoms; all if left out, those that the record shows first.
        knobs: What settings are called in the run's framework.

    Raises:
        KeyError: There is no symptom of that name.
    """
    known = {symptom.name: symptom for symptom in SYMPTOMS}
    settings = RunSettings(report.schedule, knobs or {})
    answers = [_answer(known[name], report, settings) for name in names or known]
    if names:
        return answers
    return sorted(answers, key=lambda answer: (not answer.found, not answer.sign))


def _answer(symptom: Symptom, report: Report, settings: RunSettings) -> SymptomAnswer:
    causes = sorted(
        (_cause(cause, report) for cause in symptom.causes),
        key=lambda each: (_ORDER.index(each.state), bool(each.explained_by)),
    )
    codes = {code for cause in symptom.causes for code in cause.codes}
    checked = [rule for rule in report.rules if rule.code in codes]
    links = links_of(checked, report.findings)
    found = any(cause.state == "found" for cause in causes)
    left = left_of(report, settings, symptom.suspects, sure=found)
    return SymptomAnswer(
        name=symptom.name,
        words=symptom.words if symptom.words_of is None else symptom.words_of(report) or symptom.words,
        sign=symptom.sign(report),
        conclusion=_conclusion(causes, left, found=found),
        causes=tuple(causes),
        right=tuple(link.name for link in links if link.state == "right"),
        right_in_part={link.name: link.share for link in links if link.state == "in part"},
        left=left,
    )


def _conclusion(causes: list[CauseAnswer], left: tuple[Left, ...], *, found: bool) -> str:
    """The answer in one sentence."""
    if found:
        others = sum(cause.state == "found" and not cause.explained_by for cause in causes[1:])
        more = f", and {number(others, 'other faults')}" if others else ""
        return f"a fault was found: {causes[0].words}{more}"
    if left and left[0].design:
        return f"by design: {left[0].words}"
    looked = any(cause.state in ("excluded", "by design") for cause in causes)
    so_far = "no fault was found" if looked else "nothing that could be a fault was observed"
    if not left:
        return f"{so_far}, and the numbers show nothing else"
    likely = ("not excluded", "most likely", "the numbers show that")[left[0].weight]
    return f"{so_far}; {likely}: {left[0].words}".replace("that:", "that")


def _cause(cause: Cause, report: Report) -> CauseAnswer:
    if cause.design:
        return _by_design(cause, report.schedule)
    found = [finding for finding in report.findings if finding.code in cause.codes and finding.severity != "info"]
    if found:
        first = next((finding for finding in found if not finding.explained_by), found[0])
        evidence = f"{first.code} at {first.where}: {first.observed}"
        if first.explained_by:
            evidence += f"; {first.explained_by} explains it"
        return CauseAnswer(
            words=cause.words, state="found", evidence=evidence, codes=cause.codes, explained_by=first.explained_by
        )
    outcomes = {outcome.code: outcome for outcome in report.rules if outcome.code in cause.codes}
    passed = [outcome for outcome in outcomes.values() if outcome.verdict == "PASS"]
    unknown = [outcome for outcome in outcomes.values() if outcome.verdict == "NOT_EVALUATED"]
    # A rule that had nothing to look at because the run never did it excludes its cause.
    if passed and all(outcome.idle for outcome in unknown):
        looked = ", ".join(f"{outcome.code} {number(outcome.checks, 'checks')}" for outcome in passed)
        return CauseAnswer(words=cause.words, state="excluded", evidence=looked, codes=cause.codes)
    if unknown and not passed and all(outcome.idle for outcome in unknown):
        never = unknown[0].reason
        return CauseAnswer(words=cause.words, state="not in this run", evidence=never, codes=cause.codes)
    # What the run never did is no reason beside one for which something could not be seen.
    lacking = [outcome for outcome in unknown if not outcome.idle] or unknown
    reasons = dict.fromkeys(f"{outcome.code}: {outcome.reason}" for outcome in lacking) or {"no rule looked": None}
    looked = f"; {', '.join(outcome.code for outcome in passed)} passed" if passed else ""
    return CauseAnswer(words=cause.words, state="not observed", evidence="; ".join(reasons) + looked, codes=cause.codes)


def _by_design(cause: Cause, schedule: Schedule | None) -> CauseAnswer:
    """Lag 0 alone: the ratio is 1, and a loss of normalised advantages reads 0."""
    if schedule is None:
        state: State = "not observed"
        evidence = "the record has no plan"
    elif schedule.lags == (0,):
        state, evidence = "by design", "every micro-batch has lag 0: this is how the run is configured"
    else:
        lags = " ".join(map(str, schedule.lags))
        state, evidence = "excluded", f"the plan has lags {lags}" if lags else "the plan does not know the lags"
    return CauseAnswer(words=cause.words, state=state, evidence=evidence, codes=cause.codes)
