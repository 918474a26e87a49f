"""How a rollout is cut into the mini-batches and micro-batches of each role.

T prompts of a rollout, n samples of a prompt, M and Mc prompts of a mini-batch of the policy and of the critic, W data-parallel
processes. Lines are those of verl 0.9.1 unless another release is named.
"""

from __future__ import annotations

from rlstep_hooks.systems.verl.settings import ACTOR, REFERENCE, ROLLOUT

GROUP = f"{ROLLOUT}.n"
MINIBATCH = f"{ACTOR}.ppo_mini_batch_size"


def _microbatches(role: str, section: str, own: str, size: str, dynamic: str, checked: str) -> dict[str, str]:
    """The micro-batches of a role.

    Args:
        role: "" for the policy, "critic." for the critic.
        section: Section of the role.
        own: Name of the samples of a micro-batch on one process.
        size: What its worker reads as that.
        dynamic: Whether its worker cuts micro-batches by token counts.
        checked: `use_dynamic_bsz` in its section.
    """
    over_all, each = f"{section}.ppo_micro_batch_size", f"{section}.ppo_micro_batch_size_per_gpu"
    name = role.replace(".", "_")
    return {
        # Legacy workers prefer the older setting, which is over all processes (fsdp_workers.py 0.7.1:256-260).
        own: f"None if {dynamic} else {over_all} // {role}world_size if legacy and {over_all} is not None else {size}",
        f"{name}sized": f"{each} is not None or {over_all} is not None",
        f"{role}samples_per_microbatch": f"{own} * {role}world_size if {own} "
        f"else unknown('micro-batches are cut by token counts') if {checked} "
        f"else unknown('no micro-batch size is given') if not {name}sized "
        "else unknown('micro-batches are cut by token counts; verl does not pass this role\\'s micro-batch size on to its engine')",
        f"{name}cut": f"microbatches({role}minibatches, {role}samples_per_microbatch)",
        f"{role}microbatches_per_rollout": f"{role}reuse_epochs * sum({name}cut)",
        f"{role}microbatches_per_update": f"max({name}cut) if max({name}cut) == min({name}cut) "
        "else unknown('the last mini-batch of a pass is smaller')",
    }


def _logprobs(section: str, used: str) -> str:
    """Samples of a micro-batch on one process where log-probs are computed; None by token counts, or where there are none."""
    dynamic = f"{section}.log_prob_use_dynamic_bsz"
    return (
        f"None if legacy or not ({used}) or ({dynamic} if {dynamic} is not None else {ACTOR}.use_dynamic_bsz) "
        f"else {section}.log_prob_micro_batch_size_per_gpu"
    )


SIZES: dict[str, str] = {
    "prompts_per_rollout": "prompts",
    "samples_per_prompt": GROUP,
    "reuse_epochs": f"{ACTOR}.ppo_epochs if reads_epochs else 1",
    "critic.reuse_epochs": f"(critic.ppo_epochs or {ACTOR}.ppo_epochs) if reads_epochs else 1",
    "critic_minibatch": f"critic.ppo_mini_batch_size or {MINIBATCH}",
    # Legacy workers: M*n // W samples on each process, rounded down (fsdp_workers.py 0.7.1:249-250 and 1338-1339).
    "share": f"floor({MINIBATCH} * {GROUP} / world_size)",
    # What the settings ask for, before the processes share it.
    "wanted": f"{MINIBATCH} * {GROUP}",
    "critic_share": f"floor(critic_minibatch * ({GROUP} if critic_counts_prompts else 1) / critic.world_size)",
    # The V1 trainers fill a rollout up with samples that train nothing: T*n rounded up to a multiple of lcm(W, M*n, Mc*n), where a role
    # counts only if this rollout updates it (trainer_base.py:1589-1606 `_get_required_batch_multiple`, padding_utils.py:165-176).
    "multiple": "lcm(world_size, samples_per_update, critic.samples_per_update) if critic else lcm(world_size, samples_per_update)",
    # separate_async fills up each of its parts.
    "part": "samples_per_rollout // calls",
    "filled": "pads and part % multiple > 0",
    "trained": "samples_per_rollout + samples_added_per_rollout if filled else samples_per_rollout",
    "warmup_multiple": "lcm(world_size, critic.samples_per_update) if critic else world_size",
    "warmup_trained": "ceil(part / warmup_multiple) * warmup_multiple * calls if pads else samples_per_rollout",
    # Legacy workers split what they have, and the last mini-batch is smaller (dp_actor.py 0.7.1:548, dp_critic.py 0.7.1:207); engines
    # take only whole ones (tensordict_utils.py:588).
    "remainder": "'pad' if pads else 'keep' if legacy else 'error'",
    "minibatches": "slices(trained, samples_per_update)",
    "critic.minibatches": "slices(trained, critic.samples_per_update)",
    # The critic's, in a rollout that does not train the policy; they differ where the padding does.
    "critic_warmup_minibatches": "slices(warmup_trained, critic.samples_per_update)",
    "critic.warmup_minibatches": "critic_warmup_minibatches "
    "if frozen_rollouts and critic_warmup_minibatches != critic.minibatches else None",
    **_microbatches(
        "",
        ACTOR,
        "micro",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
        f"{ACTOR}.use_dynamic_bsz",
        f"{ACTOR}.use_dynamic_bsz",
    ),
    # Its own settings reach the critic of legacy workers and of 0.6; later engines have a section of their own.
    "critic_checked": f"critic.use_dynamic_bsz if critic.use_dynamic_bsz is not None else {ACTOR}.use_dynamic_bsz",
    "critic_reads_own": "legacy or engine_critic_reads_microbatch_size",
    "critic_engine_dynamic": "critic.fsdp.use_dynamic_bsz if critic_has_engine_section else critic.model.fsdp_config.use_dynamic_bsz",
    "critic_dynamic": "critic_checked if critic_reads_own else critic_engine_dynamic is None or critic_engine_dynamic",
    "critic_size": "critic.ppo_micro_batch_size_per_gpu if critic_reads_own "
    "else critic.fsdp.micro_batch_size_per_gpu if critic_has_engine_section "
    "else critic.model.fsdp_config.micro_batch_size_per_gpu",
    **_microbatches("critic.", "critic", "critic_micro", "critic_size", "critic_dynamic", "critic_checked"),
    "logprob_micro": _logprobs(ROLLOUT, "not bypass"),
    "reference_micro": _logprobs(REFERENCE, "uses_reference"),
}
"""Quantities of `rlstep_hooks.systems.verl.system`."""
