"""Findings that are true of a legal configuration, each with its condition, computed from the configuration; all others are false."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.judge.report import Report
    from tests.systems.trl.random_runs.draws import Draw


def no_signal(draw: Draw, config: Any, trainer: Any) -> bool:
    """RLS505: TRL's own logs show no group with different rewards among which a completion was not masked out."""
    masked = config.mask_truncated_completions
    logged = [row for row in trainer.state.log_history if "frac_reward_zero_std" in row]
    if not logged:
        return masked or draw.around.get("rewards") in ("length", "sparse")
    return all(row["frac_reward_zero_std"] == 1 or (masked and row["completions/clipped_ratio"] > 0) for row in logged)


def rates_changed(draw: Draw, config: Any, trainer: Any) -> bool:
    """RLS605: the drawn callback halves the base rates of the scheduler. The user meant it, so no error."""
    return draw.around.get("callback") == "halves_rate"


def noise(draw: Draw, config: Any, trainer: Any) -> bool:
    """RLS301, RLS313, RLS414: dropout or NEFTune make each forward in training mode another one."""
    dropout = draw.around.get("dropout") and not config.disable_dropout
    return bool(config.neftune_noise_alpha or dropout or draw.around.get("adapter") == "lora_dropout")


def another_forward(draw: Draw, config: Any, trainer: Any) -> bool:
    """RLS313: noise, or positions that are counted from the padding.

    TRL pads prompts on the left to the multiple in training and not in generation, and gives GPT-2 no positions (grpo_trainer.py
    1.16.0:2447), so that it counts them from the padding.
    """
    shifted = draw.around.get("architecture") == "gpt2" and config.pad_to_multiple_of is not None
    return shifted or noise(draw, config, trainer)


def rows_never_seen(draw: Draw, config: Any, trainer: Any) -> bool:
    """RLS506: rows that fill no rollout, in a fixed order."""
    prompts = len(trainer.train_dataset) % (config.generation_batch_size // config.num_generations)
    return not config.shuffle_dataset and prompts > 0


def rate_falls_to_zero(draw: Draw, config: Any, trainer: Any) -> bool:
    """RLS603: a cosine of several cycles is at 0 between them."""
    return str(config.lr_scheduler_type.value) == "cosine" and "num_cycles" in (config.lr_scheduler_kwargs or {})


def rate_never_rises(draw: Draw, config: Any, trainer: Any) -> bool:
    """RLS603, RLS604: of one update, whose rate is that of the beginning of a warm-up, which is 0."""
    updates = int(trainer.state.max_steps)
    return updates == 1 <= config.get_warmup_steps(updates)


def nothing_is_taught(draw: Draw, config: Any, trainer: Any) -> bool:
    """RLS406, RLS310: cispo multiplies each log-prob by the ratio, cut off at an upper bound that is 0 here."""
    upper = config.epsilon if config.epsilon_high is None else config.epsilon_high
    return getattr(config, "loss_type", "") == "cispo" and upper == 0


TRUE: dict[tuple[str, str], Callable[[Draw, Any, Any], bool]] = {
    ("RLS505", "warning"): no_signal,
    ("RLS310", "error"): nothing_is_taught,
    ("RLS406", "error"): nothing_is_taught,
    ("RLS605", "warning"): rates_changed,
    ("RLS603", "warning"): rate_falls_to_zero,
    ("RLS603", "error"): rate_never_rises,
    ("RLS604", "warning"): rate_never_rises,
    ("RLS506", "warning"): rows_never_seen,
    ("RLS301", "warning"): noise,
    ("RLS313", "warning"): another_forward,
    ("RLS314", "warning"): another_forward,
    ("RLS414", "warning"): noise,
}
"""Conditions by code and severity."""


def true_findings(draw: Draw, config: Any, trainer: Any, report: Report) -> tuple[list[str], list[str]]:
    """The errors and warnings of a healthy run: codes of those that are true, texts of those that are not."""
    true: list[str] = []
    false: list[str] = []
    for finding in report.findings:
        if finding.severity == "info":
            continue
        condition = TRUE.get((finding.code, finding.severity))
        if finding.deviation or (condition is not None and condition(draw, config, trainer)):
            true.append(finding.code)
            continue
        false.append(f"{finding.code} {finding.severity}: {finding}")
    if not report.complete:
        false.append("incomplete: the report does not know that training reached its end")
    counts, schedule = report.counts, report.schedule
    if counts.updates + counts.skipped_updates != trainer.state.global_step:
        false.append(f"counts: {counts.updates} updates for {trainer.state.global_step}")
    if schedule is None:
        false.append("schedule: none")
    elif not true and schedule.updates is not None and counts.updates + counts.skipped_updates != schedule.updates:
        false.append(f"schedule: {schedule.updates} updates planned, {counts.updates} made")
    false.extend(f"contained: {topic}: {why}" for topic, why in report.not_evaluated.items() if "Error" in why)
    return true, false
