"""The numbers of micro-batches, updates and rollouts, as fields.

They come later than the events that they belong to, in the event `Measured`: hooks keep them on the device until they can be fetched
without waiting.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rlstep_hooks.planning.token_row import TokenRow
from rlstep_hooks.record.values import Learns, Role


class MicroBatchValues(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Numbers of one micro-batch, over real (unmasked) tokens."""

    index: int
    tokens: int
    max_abs_advantage: float | None = None
    """Over real tokens; None if it was not computed. In a loop of one's own, which may normalise them, their range."""
    max_abs_log_ratio: float | None = None
    mean_abs_log_ratio: float | None = None
    log_ratio_99: float | None = None
    """The 99th percentile of |log ratio|; None where it was not computed, as for ratios of whole sequences."""
    log_ratio_outside: float | None = None
    """The share of the tokens whose ratio is outside of [0.9, 1.1]; None where it was not computed."""
    max_abs_log_prob: float | None = None
    """The largest -log-prob of a token, in nats; None if it was not computed. Near 0 the policy is certain of every token."""
    unsure: float | None = None
    """The probabilities that the policy gives to other tokens than those that were drawn, added up over the tokens: what a change of
    its logits can show in their log-probs. Near 0 the policy is certain of every token."""
    max_lone_advantage: float | None = None
    """`max_abs_advantage` over samples whose completion no other sample of the rollout has; None where it is the same number, or was
    not looked for. Gradients of equal completions with opposite advantages cancel exactly."""
    learns: Learns = ""
    """Whether some token has a gradient, after every mask and clip of the loss; of samples whose completion no other has, where that
    was looked for. "unknown" where the loss leaves out tokens that nobody follows, or where rounding decides it for all that may have
    one."""
    clipped: float | None = None
    """Fraction of tokens (of sequences, if `scope` is "sequence") whose gradient the clip removes."""
    scope: Literal["token", "sequence"] = "token"
    old_intact: bool | None = None
    """Whether the old log-probs equal those of the refresh bit for bit, row by row."""
    sampling_intact: bool | None = None
    """Whether the sampler's log-probs equal those that the rollout came with bit for bit, row by row."""
    tokens_intact: bool | None = None
    """Whether the completion tokens equal those of the rollout, row by row."""
    inputs_intact: bool | None = None
    """Whether the model's forward was given all tokens of its samples, prompts and completions, and no others; None where that was not
    looked at."""
    left_out: bool = False
    """Whether tokens and old log-probs were not compared because its cycle of rollouts is one of those that are left out."""
    advantages_intact: bool | None = None
    """Whether the advantages equal those of the rollout bit for bit, row by row."""
    targets_intact: bool | None = None
    """Whether the targets of the critic's values equal those of the rollout bit for bit, row by row."""
    values_intact: bool | None = None
    """Whether the critic's old values equal those that it computed bit for bit, row by row."""
    backward_ratio: float | None = None
    """The factor of the loss in the backward, divided by the documented one; None if it was not compared."""
    gradient_gap: float | None = None
    """Largest distance of a gradient that arrived at a log-prob, an entropy or a value of the critic, from that of the documented loss,
    in roundings; None if it was not compared."""
    head_gap: float | None = None
    """Largest distance of a gradient that arrived at the output of the model's layers from that of its log-prob, over the size of the
    largest; None if it was not compared."""
    loss_ratio: float | None = None
    """The loss divided by what the documented formula gives for the same log-probs; None if that cannot be computed."""
    loss_gap: float | None = None
    """Distance of the loss from the documented one, in roundings: over the sum of the sizes of its terms, each times the epsilon of its
    dtype. None where the observer gives `loss_ratio` alone."""
    loss_like: str = ""
    """What a loss that is not the documented one is to rounding, in words that follow "the loss is"; where the loss is right and its
    gradient is not, what that is, in words that follow "its gradient is"; empty if nothing known fits."""
    mask_intact: bool | None = None
    """Whether the loss counts the tokens that counted when the old log-probs were computed, row by row."""
    timesteps_intact: bool | None = None
    """Whether observations and actions equal those of the rollout, timestep by timestep."""
    prompts_intact: bool | None = None
    """Whether the prompts' tokens equal those that the rollout came with, row by row."""
    reference_intact: bool | None = None
    """Whether the reference's log-probs equal those that the rollout came with bit for bit, row by row."""
    weights_intact: bool | None = None
    """Whether the importance weights between engine and trainer equal those that the rollout came with bit for bit, row by row."""
    weights_off: float | None = None
    """Where the loss computes the importance weights between trainer and engine itself: the largest distance of one from the documented
    one, in units of what rounding explains; None if that was not compared."""
    weights_like: str = ""
    """What the weights are instead, if something known gives them."""
    weights_cut: float | None = None
    """Fraction of tokens whose documented weight is outside of its bounds."""
    copied: int | None = None
    """Samples whose completion, token by token, another sample of their rollout has; None where that was not looked at."""
    copied_nats: float | None = None
    """-log-prob of the least probable of them, in nats; 0 without one."""
    improbable: str = ""
    """Completions of this process that chance does not repeat, as `RolloutValues.improbable` has them."""
    improbable_in: int | None = None
    """The rollout that these completions belong to; None where none were looked for."""
    reference_gap: float | None = None
    """Mean |policy - reference| of the log-probs where the reference should still be the policy; None if it need not be."""
    surprise: float | None = None
    """Surprisal, by the name that records have for it: the sum of -log-prob minus entropy over the tokens, in nats, with -log-prob cut
    at the fact `surprise_cap`; None where it was not computed."""
    surprise_squares: float | None = None
    """Sum over the tokens of the squares of what `surprise` adds up."""
    surprise_largest: float | None = None
    """The largest summand of `surprise`."""
    sampling_gap: float | None = None
    """Mean |log-prob in the loss - log-prob when it was drawn| over tokens that the weights of the loss drew; None if not compared."""
    max_sampling_gap: float | None = None
    """The largest |log-prob in the loss - log-prob when it was drawn| over the tokens of `sampling_gap`."""
    sampling_gap_99: float | None = None
    """The 99th percentile of what `sampling_gap` is the mean of."""
    sampling_outside: float | None = None
    """The share of the tokens of `sampling_gap` whose ratio to the probability when they were drawn is outside of [0.9, 1.1]."""
    sampling_known: int | None = None
    """How many tokens `sampling_gap` is the mean of."""
    clean_gap: float | None = None
    """Mean |log-prob - that of a forward of the row alone| of the farthest of the rows that were scored so; None if none was."""
    max_clean_gap: float | None = None
    """The largest |log-prob - that of a forward of the row alone| of that row."""
    clean_gap_99: float | None = None
    """The 99th percentile of |log-prob - that of a forward of the row alone| of that row."""
    clean_outside: float | None = None
    """The share of that row's tokens whose ratio to the probability of a forward of the row alone is outside of [0.9, 1.1]."""
    clean_of: str = ""
    """Which log-probs were compared: "the loss" or "the old log-probs"."""
    clean_like: str = ""
    """What else gives the log-probs of that row; empty where nothing does that was tried."""
    entropy_gap: float | None = None
    """Mean |entropy - that of a forward of the row alone| over the tokens of the farthest of these rows, over the mean entropy where
    that is above 1; None where entropies were not compared."""
    entropy_exact: bool = False
    """Whether the other entropies are computed from the same logits, so that the rounding of float32 alone explains a distance."""
    entropy_like: str = ""
    """What else gives the entropies of that row; empty where nothing does that was tried."""
    reference_clean_gap: float | None = None
    """Mean |log-prob of the reference - that of the reference's forward of the row alone| of the farthest of these rows; None if none
    was scored with it."""
    reference_clean_max: float | None = None
    """The largest |log-prob of the reference - that of the reference's forward of the row alone| of that row."""
    reference_clean_like: str = ""
    """What else gives the reference's log-probs of that row; empty where nothing does that was tried."""
    reference_is_policy: bool | None = None
    """Whether the reference's log-probs of one of these rows are the policy's, bit for bit, although forwards of the row alone give
    most of its tokens different ones; None where they give equal ones."""
    divergence: float | None = None
    """The framework's estimate of the KL divergence from the old policy, by which it ends the updates on a rollout."""
    gradients_replaced: int | None = None
    """Values of gradients that backward hooks of modules replaced; None where none returned any, or none was looked at."""
    replacing_module: str = ""
    """The first module with a backward hook that replaced gradients."""
    log_prob_gradient: float | None = None
    """The largest gradient that arrived at a log-prob in the backward; None if it was not observed. With 0, an update may change a
    critic that shares the optimizer, and leaves the policy as it is."""
    mean_abs_log_prob: float | None = None
    """Mean -log-prob of a token, in nats: an estimate of the entropy, where the weights of the loss drew it; None if not computed."""
    entropy: float | None = None
    """Mean entropy of the distributions that the tokens were drawn from, in nats; None where it was not computed."""
    reference_kl: float | None = None
    """Mean estimate of the KL divergence of a token from the reference, as the loss takes it; None where it takes none."""
    given_tokens: float | None = None
    """The tokens of all processes that the loss was given to divide by; None where it divides by none, or that was not looked at."""
    tokens_of: int | None = None
    """The rollout whose tokens these should be; None without them."""
    divisor_tokens: float | None = None
    """What the loss was given as the tokens of its update on all processes, where it divides by these and only all records together
    say whether it is right; None elsewhere."""
    divisor_samples: float | None = None
    """The same of the samples of its update."""
    own_tokens: int | None = None
    """Tokens of its update on this process that count; None without `divisor_tokens`."""
    own_samples: int | None = None
    """Samples of its update on this process that have such a token; None without `divisor_samples`."""
    divisor_update: int | None = None
    """The update, among those of its role, that these four are numbers of; None without them."""
    divisor_rollout: int | None = None
    """How many rollouts this role trained before the one whose micro-batches share these divisors; None without them."""
    divisor_part: int | None = None
    """Which of the parts of that rollout these micro-batches are, in the order in which they are trained; None without divisors."""
    least_kept_entropy: float | None = None
    """The least entropy of the tokens that are trained for theirs, where the entropies of all processes decide which these are; None
    elsewhere, and where there is no such token."""
    most_left_entropy: float | None = None
    """The largest entropy of the tokens that are left out for theirs; None as for the other."""
    entropies: int | None = None
    """How many tokens have an entropy that decides, with those of all processes, which are trained; None elsewhere."""
    entropies_kept: int | None = None
    """How many of them are trained."""
    entropies_at_least: int | None = None
    """How many of those have the least entropy of all of them."""
    role: Role = "policy"


class UpdateValues(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Numbers of one update, from a probe of trainable weights."""

    index: int
    probed: int
    """Number of probed weights."""
    changed: int
    """Probed weights whose value the optimizer step changed."""
    with_gradient: int
    """Probed weights whose gradient is not zero."""
    visible: int
    """Probed weights whose gradient times the learning rate is large enough to change them in their dtype."""
    role: Role = "policy"
    max_change: float | None = None
    """The largest change of a probed weight on which the log-probs depend: an optimizer may also train a critic."""
    moved_before: int = 0
    """Probed weights that changed between the end of the previous update and the start of this one."""
    tensors_moved: int | None = None
    """Tensors that changed in that time, of all that are trained; None if not all were compared."""
    moments_moved: int | None = None
    """Tensors of the optimizer's moments that changed in that time, of all; None if they were not compared."""
    kept_moved: int | None = None
    """Frozen weights and rotary frequencies that are not what they were when training began, by tensors; None if not compared."""
    kept_tensor: str = ""
    """The name of the first of them."""
    left_over: int | None = None
    """Probed weights whose gradient was not 0 before the first backward of this update; None if that moment was not observed."""
    optimizer_off: float | None = None
    """Largest distance of a probed weight from where the optimizer's formula puts it, in units of what rounding explains; None if
    the step was not replayed."""
    optimizer_share: float | None = None
    """How many times the documented step was made, on average."""
    moments_lost: int | None = None
    """Probed optimizer moments that differ from those that the previous update left; None if that was not compared."""
    moments_off: float | None = None
    """Largest distance of a probed moment after the step from the one that the optimizer's formula gives, in units of what rounding
    explains; None if the step was not replayed, or the optimizer keeps none."""
    steps_lost: int | None = None
    """Probed tensors whose count of steps in the optimizer is not the one that the previous update left; None if not compared."""
    steps_idle: int | None = None
    """Steps that the optimizer had counted before this one although no probed moment was other than 0; None if the step was not
    replayed."""
    gradient_norm: float | None = None
    """Norm of all gradients when the optimizer stepped, on this process; None if it was not computed."""
    gradient_limit: float | None = None
    """The limit that was configured for the norm at this update; 0 where nothing clips."""
    gradient_off: float | None = None
    """Largest distance of a gradient that the optimizer used from the sum of those that the backward passes gave, times the factor that
    is common to the followed tensors, in units of what rounding explains; None if gradients were not followed."""
    gradient_factor: float | None = None
    """The factor that is common to the followed tensors: the clip's, or 1."""
    gradient_tensor: str = ""
    """The name of the followed tensor with the largest distance."""
    gradient_tensor_factor: float | None = None
    """The factor of that tensor alone."""
    gradient_passes: int | None = None
    """Backward passes that reached each followed tensor since the window began."""
    frozen: int | None = None
    """Tensors that were trained at first and no longer require a gradient; None if that was not looked at."""
    reference_off: int | None = None
    """Probed weights of the reference that are not the documented mix with the policy after the sync that follows this update; None if
    none was due, or none was compared."""
    reference_like: str = ""
    """What happened to the reference instead of that mix, in words that follow "it"; empty if nothing known fits."""
    ungraded: int | None = None
    """Trainable tensors without a gradient in any update so far; None if only some tensors are checked."""
    gradient_lost: int | None = None
    """Matrices of the model's numbered layers, without experts, that had a gradient at the first update and have none at this one; None
    if that was not looked at."""


class RolloutValues(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Numbers of one rollout."""

    index: int
    max_abs_advantage: float | None = None
    """Over real tokens."""
    reference_moved: int | None = None
    """How many of the rollout's reference log-probs no forward of the reference's scoring gave; None where that was not seen."""
    reference_unscored: bool | None = None
    """Whether the rollout has log-probs of a reference that made no forward for them; None where that was not seen."""
    tokens_moved: int | None = None
    """Samples whose prompt or completion has other tokens than the policy's `generate` was asked for and gave; None where that was not
    seen."""
    prompts_wrong: int | None = None
    """Prompts with other tokens than the tokenizer gives for their rows; None where none was encoded again."""
    tokens_like: str = ""
    """What is wrong with the tokens of the first such sample, where turns were joined."""
    tokens_at: str = ""
    """The place of that difference, with the texts."""
    rewards_moved: int | None = None
    """Samples that have not the rewards that were given for them; None where that was not seen."""
    rewards_like: str = ""
    """What is wrong with these rewards, where that is known."""
    rewards_uncompared: int | None = None
    """Reward functions of which it was not compared what they got, or what they gave; None where no function was looked at."""
    timesteps_moved: int | None = None
    """Timesteps that the buffer has otherwise than it was given, but for their rewards; None where that was not seen."""
    timesteps_part: str = ""
    """What is other in those timesteps: "observations", "actions", "values" or "ends of episodes"."""
    actions_off: int | None = None
    """Actions that were not drawn from the policy's distribution as its settings document; None where that was not seen."""
    actions_like: str = ""
    """What those actions are instead."""
    masks_wrong: int | None = None
    """Samples whose mask does not count the tokens that the documentation counts; None if masks were not compared."""
    masks_like: str = ""
    """What is wrong with the mask of the first such sample, where turns were joined."""
    masks_at: str = ""
    """The place of that difference, with the text."""
    sampling_moved: int | None = None
    """Rows whose log-probs of the sampling stand at other tokens than they were handed over for, or drawn with; None where that was not
    compared."""
    sampling_like: str = ""
    """What the first such row has instead."""
    wrong_row: TokenRow | None = None
    """The first row that is wrong, token by token, where turns were joined."""
    rows_joined: int | None = None
    """Rows that were compared with the turns that `generate` gave for them; None where turns are not joined."""
    turns: int | None = None
    """How many turns the joined rows have."""
    tokens_sampled: int | None = None
    """How many tokens of the joined rows' completions the policy sampled."""
    tokens_written: int | None = None
    """How many tokens of the joined rows' completions a tool, an environment or the chat template wrote."""
    advantages_off: float | None = None
    """Largest distance of an advantage from the documented one, recomputed from the rewards, in units of what rounding explains;
    None if it was not compared."""
    weights_differ: int | None = None
    """Probed weights that differed between generation and the end of the previous update; None if that was not compared."""
    model_moved: int | None = None
    """Probed weights of the model that something else than an update wrote to since the rollout before, where the optimizer steps on
    weights of its own; None if that was not looked at."""
    advantages_fit: str = ""
    """Which other calculation gives these advantages, if they are not the documented ones and one was found."""
    sampler_gap_mean: float | None = None
    """Mean |trainer log-prob - engine log-prob| of the sampled tokens, if the engine returns log-probs."""
    sampler_gap_max: float | None = None
    sampler_gap_99: float | None = None
    """The 99th percentile of what `sampler_gap_mean` is the mean of."""
    sampler_gap_outside: float | None = None
    """The share of the tokens of `sampler_gap_mean` whose ratio to the engine's probability is outside of [0.9, 1.1]."""
    sampler_gap_tokens: int | None = None
    """How many tokens `sampler_gap_mean` is the mean of."""
    sampler_gap_fit: str = ""
    """What gives the engine's log-probs from the trainer's own logits or log-probs; empty if nothing fits or nothing was tried."""
    weights_off: float | None = None
    """Largest distance of an importance weight between trainer and engine from the documented one, in units of what rounding explains;
    None if that was not compared."""
    weights_like: str = ""
    """What the weights are instead, if something known gives them."""
    weights_cut: float | None = None
    """Fraction of tokens whose documented weight is outside of its bounds."""
    drawn_tokens: int | None = None
    """Counted tokens whose log-probs were computed with the entropies of their positions; None if none were."""
    surprise: float | None = None
    """How surprising the tokens are, as `MicroBatchValues.surprise` is, over `drawn_tokens`."""
    surprise_squares: float | None = None
    surprise_largest: float | None = None
    copied: int | None = None
    """Completions that stand before in the rollout, token by token; None if that was not compared."""
    copied_nats: float | None = None
    """The largest -log p of these completions; 0 without one."""
    improbable: str = ""
    """Completions of this process that chance does not repeat, with spaces between them: of each a checksum of its tokens, a colon, and
    its -log p in whole nats. Of many those with the smallest checksums are here, which are the same ones on each process."""
    mean_ratio: float | None = None
    """Mean ratio of all micro-batches that were trained on the rollout; masked tokens count as 1, as in the framework's own
    metric."""
    reference_changed: int | None = None
    """Probed weights of the reference model that changed since its first use, or since its latest sync where it follows the policy."""
    reference_written: int | None = None
    """Probed tensors of the reference that torch saw written to in place since the look before, whatever their values are now; None if
    that was not observed."""
    reference_shared: bool | None = None
    """Whether the reference's weights are the policy's own tensors; None if that was not looked at."""
    reference_gap: float | None = None
    """Mean |policy - reference| of the log-probs where the reference should still be the policy; None if it need not be."""
    clean_gap: float | None = None
    """Mean |log-prob - that of a forward of the row alone| of the farthest of the rows that were scored so; None if none was, or
    where a micro-batch says it."""
    max_clean_gap: float | None = None
    """The largest |log-prob - that of a forward of the row alone| of that row."""
    clean_gap_99: float | None = None
    """The 99th percentile of |log-prob - that of a forward of the row alone| of that row."""
    clean_outside: float | None = None
    """The share of that row's tokens whose ratio to the probability of a forward of the row alone is outside of [0.9, 1.1]."""
    clean_of: str = ""
    """Which log-probs were compared: "the old log-probs"."""
    clean_like: str = ""
    """What else gives the log-probs of that row; empty where nothing does that was tried."""
    reference_clean_gap: float | None = None
    """Mean |log-prob of the reference - that of the reference's forward of the row alone| of the farthest of the rows that were scored
    with it; None if none was, or where a micro-batch says it."""
    reference_clean_max: float | None = None
    """The largest |log-prob of the reference - that of the reference's forward of the row alone| of that row."""
    reference_clean_like: str = ""
    """What else gives the reference's log-probs of that row; empty where nothing does that was tried."""
    reference_is_policy: bool | None = None
    """Whether the reference's log-probs of one of these rows are the policy's, bit for bit, although forwards of the row alone give
    most of its tokens different ones; None where they give equal ones."""
    slope_gap: float | None = None
    """The largest distance between what a backward pass and small steps of its embeddings tell of the slope of the policy's layers at
    one row, over the size of the gradient; None where it was not measured."""
    slope_doubt: float | None = None
    """The largest distance between what two lengths of these steps tell, over the same."""
    slope_layer: str = ""
    """The layer whose backward pass is another; empty where none is, or none is told apart."""
    logged_ratio: float | None = None
    """The mean ratio that the framework logged."""
    sampler_gap_fresh: float | None = None
    """What `sampler_gap_mean` is, over the samples of the very weights that computed the trainer's log-probs; None where there
    were none, or that is not known."""
    reward_mean: float | None = None
    """Mean reward of the rollout's samples, all reward functions weighted and added up; None where rewards were not seen."""
    reward_deviation: float | None = None
    """Standard deviation of the samples' rewards."""
    groups: int | None = None
    """Groups whose rewards were seen; None where they were not."""
    equal_groups: int | None = None
    """Groups in which all samples have the same reward, so that they give no gradient."""
    own_tokens: int | None = None
    """Tokens of this process that count in its masks, where the loss is divided by those of all processes; None where it is not, or
    they were not counted."""
    all_rewards: int | None = None
    """A checksum of the rewards of all processes' samples, in their order, as this process has them; None where there is one process,
    or they were not seen."""
