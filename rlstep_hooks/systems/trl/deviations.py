"""TRL's known deviations, as data. Each is reproduced in a real run of a release that has it (tests/systems/trl)."""

from __future__ import annotations

from rlstep_hooks.judge.deviations import Deviation, Evidence
from rlstep_hooks.record.events import EpochEnd, Update
from rlstep_hooks.systems.deepspeed_engine import faults

_ORDER = frozenset({"RLS201", "RLS202", "RLS203", "RLS204", "RLS205", "RLS206", "RLS208", "RLS307"})


def _evaluated_before(evidence: Evidence) -> bool:
    facts = evidence.progress.started.facts
    return (
        evidence.progress.evaluations > 0
        or evidence.finding.code == "RLS504"
        or (facts.get("micro_steps_at_begin", 0) > 0 and not facts.get("trained_before", False))
    )


def _resumed_in_mid_cycle(evidence: Evidence) -> bool:
    position = evidence.progress.started.facts.get("position", {})
    return evidence.progress.resumed and position.get("cycle", 0) > 0


def _trained_before(evidence: Evidence) -> bool:
    facts = evidence.progress.started.facts
    return bool(facts.get("trained_before")) and facts.get("micro_steps_at_begin", 0) > 0


def _ends_a_window(evidence: Evidence) -> bool:
    difference = evidence.difference
    return difference is None or isinstance(difference.observed, EpochEnd | Update)


def _old_log_probs_of_others(evidence: Evidence) -> bool:
    return "old_log_probs_of" in evidence.progress.started.facts


def _advantages_of_minillm(evidence: Evidence) -> bool:
    facts = evidence.progress.started.facts
    return "MiniLLMTrainer" in facts.get("own_loss", "") and evidence.finding.observed.startswith("advantages")


def _model_decides_sampling(evidence: Evidence) -> bool:
    # PPOTrainer's old log-probs are the scores of generation, so settings that truncate these also show in the ratio.
    return bool(evidence.progress.started.facts.get("sampling_of_model")) and (
        evidence.finding.code == "RLS410" or evidence.progress.schedule.algorithm == "PPO"
    )


def _generated_without_cache(evidence: Evidence) -> bool:
    return bool(evidence.progress.started.facts.get("layers_drop_cache"))


DEVIATIONS: tuple[Deviation, ...] = (
    *faults.DEVIATIONS,
    Deviation(
        name="trl-evaluation-taken-for-training",
        title="evaluation taken for training",
        since="0.16",
        fixed_in="0.18",
        document="evaluation generates its own completions and leaves training as it is",
        code=(
            "TRL 0.16 and 0.17 tell evaluation from training by control.should_evaluate, which is set only by eval_strategy: an "
            "evaluation by eval_on_start, trainer.evaluate() or a callback moves the training counter, reuses training "
            "completions, and leaves its own in the training buffer"
        ),
        evidence="grpo_trainer.py 0.16.1 and 0.17.0 _prepare_inputs; measured: `l GorlSllSl` after eval_on_start in 0.17.0",
        workaround="evaluate only through eval_strategy, or use TRL 0.18 or later",
        codes=_ORDER | {"RLS207", "RLS304", "RLS502", "RLS503", "RLS504"},
        applies=_evaluated_before,
    ),
    Deviation(
        name="trl-resume-phase",
        title="the generation cycle starts anew on resume",
        since="0.17",
        document="training goes on where the checkpoint was made: the interrupted rollout gets the passes that are left",
        code=(
            "neither the micro-step counter nor the sample buffer is in the checkpoint: TRL starts a whole new cycle, so the "
            "prompts of the interrupted rollout are trained more often than planned and every later rollout comes at another update"
        ),
        evidence="grpo_trainer.py __init__ `self._step = 0`, nothing restores it; measured: resume at 3 with num_iterations 2 "
        "generates at updates 3, 5, 7 (0.17.0, 0.24.0, 1.16.0)",
        workaround=(
            "save at multiples of steps_per_generation * num_iterations / gradient_accumulation_steps updates (save_steps), and "
            "resume from such a checkpoint"
        ),
        codes=_ORDER | {"RLS502"},
        applies=_resumed_in_mid_cycle,
    ),
    Deviation(
        name="trl-resume-raises",
        title="resume in mid-cycle raises",
        since="0.16",
        fixed_in="0.17",
        document="training goes on where the checkpoint was made",
        code=(
            "TRL 0.16 generates only when global_step is a multiple of num_iterations; after a resume in between, its sample buffer "
            "is empty and training stops with \"TypeError: 'NoneType' object is not subscriptable\""
        ),
        evidence="grpo_trainer.py 0.16.1 _prepare_inputs; measured: resume at 3 with num_iterations 2 raises, at 4 works",
        workaround="save at multiples of num_iterations updates (save_steps), and resume from such a checkpoint",
        codes=frozenset({"RLS701"}),
        applies=_resumed_in_mid_cycle,
    ),
    Deviation(
        name="trl-second-training-call",
        title="a second training call goes on with the old counter",
        since="0.16",
        document="trainer.train() starts a training run of its own",
        code=(
            "the micro-step counter and the sample buffer stay on the trainer: a second call after a run that ended in mid-cycle "
            "first trains on samples of the first run"
        ),
        evidence="grpo_trainer.py __init__ is the only place that sets `_step = 0`",
        workaround="build a new trainer for the second run, or end the first at a multiple of the generation cycle",
        codes=_ORDER | {"RLS502"},
        applies=_trained_before,
    ),
    Deviation(
        name="trl-stale-without-old-log-probs",
        title="stale rollouts without old log-probs",
        since="0.18",
        fixed_in="0.20",
        document="old log-probs are computed whenever samples can be older than the weights",
        code=(
            "TRL 0.18 and 0.19 compute them only for num_iterations > 1 or steps_per_generation > gradient_accumulation_steps; where "
            "steps_per_generation does not divide the accumulation, updates fall inside a rollout and its later micro-batches are "
            "trained as if they were fresh"
        ),
        evidence="grpo_trainer.py 0.18.2 and 0.19.1; measured with GA=4, spg=3; fixed by TRL PR #3493's condition in 0.20",
        workaround="choose steps_per_generation as a divisor of gradient_accumulation_steps, or use TRL 0.20 or later",
        codes=frozenset({"RLS304"}),
        when="old_logprob_source == 'detach' and lags != (0,)",
    ),
    Deviation(
        name="trl-gradients-left-over",
        title="gradients left over from a window that never ends",
        since="0.18",
        fixed_in="0.20",
        document="the last window of a data epoch ends in an update with fewer micro-batches",
        code=(
            "the sampler's length counts rows that it drops, so the trainer waits for micro-batches that never come; the gradients "
            "stay and flow into the first update of the next epoch"
        ),
        evidence="RepeatSampler.__len__ 0.18.2 and 0.19.1; measured: 22 of 24 updates, |grad| 2.086 left (0.19.1)",
        workaround="choose rows that fill whole rollouts (no dropped rows), or use TRL 0.20 or later",
        codes=frozenset({"RLS204", "RLS205", "RLS206", "RLS208", "RLS209"}),
        when="rows_dropped_per_epoch and microbatches_per_epoch and microbatches_per_epoch % window != 0",
        applies=_ends_a_window,
    ),
    Deviation(
        name="trl-horizon-counts-dropped-rows",
        title="max_steps counts rows that are dropped",
        since="0.16",
        fixed_in="0.20",
        document="max_steps, and with it the learning-rate schedule, is the number of updates that the rows give",
        code=(
            "the sampler's length counts rows that it drops: max_steps is too large, training ends before it, and the learning rate "
            "never reaches its end"
        ),
        evidence="RepeatRandomSampler / RepeatSampler.__len__ 0.16.1 to 0.19.1; measured: 36 of 37 updates with 37 rows",
        workaround="choose rows that fill whole rollouts, set max_steps yourself, or use TRL 0.20 or later",
        codes=frozenset({"RLS206", "RLS601"}),
        when="rows_dropped_per_epoch and (lr_horizon or 0) > (lr_ticks or 0)",
    ),
    Deviation(
        name="trl-dapo-divisor",
        title="the dapo loss is divided by the generation batch instead of the accumulation window",
        since="0.22",
        fixed_in="1.9.1",
        document="dapo divides by the tokens of the accumulation window",
        code=(
            "the divisor is the tokens of the whole generation batch, so loss and gradients are off by "
            "gradient_accumulation_steps / steps_per_generation"
        ),
        evidence="grpo_trainer.py 0.22.2 to 1.9.0 _compute_loss; TRL PR #6024; measured: divisor 128 instead of 64 with GA=2, spg=4",
        workaround="leave steps_per_generation equal to gradient_accumulation_steps, or use TRL 1.9.1 or later",
        codes=frozenset({"RLS801"}),
        when="loss_type in ('dapo', 'cispo', 'vespo') and steps_per_generation != gradient_accumulation_steps",
    ),
    Deviation(
        name="trl-gfpo-old-log-probs",
        title="GFPO filters completions but not their old log-probs",
        since="0.24",
        fixed_in="0.25",
        document="each sample that the filter leaves keeps its own old log-probs",
        code=(
            "old_per_token_logps still has the rows of all samples of the rollout, so shuffling and slicing give the samples that "
            "are left the old log-probs of others, and the ratio is between unrelated numbers"
        ),
        evidence="gfpo_trainer.py 0.24.0 _generate_and_score_completions; measured: mean |log ratio| 0.15 at lag 0",
        workaround="use one pass (num_iterations=1, steps_per_generation at most gradient_accumulation_steps), or TRL 0.25 or later",
        codes=frozenset({"RLS301", "RLS302", "RLS310"}),
        applies=_old_log_probs_of_others,
    ),
    Deviation(
        name="trl-minillm-advantages",
        title="MiniLLM's advantages carry a gradient",
        since="0.26",
        document="the reverse-KL advantage weighs the policy gradient; it is a constant of it (MiniLLM, section 2.2)",
        code=(
            "compute_loss builds the advantage from the student's log-probs without detaching them, so the loss also differentiates "
            "the advantage itself"
        ),
        evidence="minillm_trainer.py 0.26.0 to 1.9.0 compute_loss; measured with 1.0.0",
        workaround="set rkl_advantage=False, or override _compute_advantage to return its result detached",
        codes=frozenset({"RLS802"}),
        applies=_advantages_of_minillm,
    ),
    Deviation(
        name="trl-generation-config-of-the-model",
        title="the model's generation_config decides how samples are drawn",
        since="0.16",
        document="samples are drawn with the temperature, top_p, top_k and penalties of the trainer's configuration",
        code=(
            "model.generate() fills settings that the trainer leaves at their defaults from the model's own generation_config, which "
            "many published models bring along (Qwen2.5-Instruct: top_p 0.8, top_k 20, repetition_penalty 1.05); the loss computes "
            "log-probs of the whole distribution"
        ),
        evidence=(
            "transformers GenerationMixin._prepare_generation_config 4.51.3, 4.57.6 and 5.23.0; measured in GRPO, RLOO and PPO. From "
            "0.26.1 GRPO and RLOO put their own settings before the model's, but not those that they do not know"
        ),
        workaround=(
            "reset these fields before training, such as model.generation_config = GenerationConfig(eos_token_id=..., "
            "pad_token_id=...), or pass the values you want in generation_kwargs"
        ),
        codes=frozenset({"RLS410", "RLS301"}),
        applies=_model_decides_sampling,
    ),
    Deviation(
        name="trl-gradient-checkpointing-in-generation",
        title="gradient checkpointing takes the context away from generation",
        since="0.16",
        fixed_in="0.22",
        document="each token is drawn given the prompt and all tokens before it",
        code=(
            "model.generate() runs in training mode with gradient checkpointing on, and layers of transformers (4.53 and later) drop "
            "the cache of keys and values: after the first token, each is drawn given nothing but the one before it"
        ),
        evidence=(
            "unwrap_model_for_generation 0.16.1 to 0.21.0, which 0.22.0 mended; transformers 4.57.6 modeling_layers.py "
            "GradientCheckpointingLayer; TRL issue #3683; measured with 0.18.2: mean distance 0.09 nats"
        ),
        workaround="use TRL 0.22 or later, transformers before 4.53, use_vllm=True, or gradient_checkpointing=False",
        codes=frozenset({"RLS313"}),
        applies=_generated_without_cache,
    ),
)
