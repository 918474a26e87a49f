"""More faults for the corpus of OpenRLHF, one for each link that a number passes; registered and made as those of `faults.py`."""

from __future__ import annotations

import functools
import itertools
import os
from typing import Any

import wrapt

from tests.systems.openrlhf.faults import (
    AGENT,
    BUFFER,
    CRITIC,
    ENGINE,
    GENERATOR,
    LAUNCHER,
    LOSS,
    MAKER,
    MODELS,
    POLICY,
    SAMPLES,
    WORKER,
    Now,
    at_call,
    fault,
    grow_weights,
    other_loss,
    wrap,
)

# Data and sampling


def in_the_draw(at: int, change: Any) -> None:
    """Change what is drawn from the loader for one rollout: `change` gets the lists of this draw and of the one before it."""
    draws = itertools.count()
    before: list[Any] = []

    def place(module: Any) -> None:
        plain = module._collect_prompt_batch

        @functools.wraps(plain)
        def collect(*args: Any, **kwargs: Any) -> Any:
            drawn = plain(*args, **kwargs)
            if next(draws) == at:
                return change(drawn, before[-1])
            before.append(drawn)
            return drawn

        module._collect_prompt_batch = collect

    wrapt.when_imported(GENERATOR)(place)


@fault(report="OpenRLHF#1320", code="RLS509")
def prompts_served_again(at: int) -> None:
    """A rollout gets the prompts of the one before it."""
    in_the_draw(at, lambda drawn, before: before)


@fault(report="a collator that shuffles one column", code="RLS515", cause="labels")
def labels_of_other_prompts(at: int) -> None:
    """The labels of a rollout move by one prompt."""
    in_the_draw(at, lambda drawn, before: (drawn[0], [*drawn[1][1:], drawn[1][0]], *drawn[2:]))


def sampling_with(at: int, **settings: Any) -> None:
    """Sample one rollout with a further setting."""

    def place(module: Any) -> None:
        plain = module.SamplingParams
        calls = itertools.count()

        def make(**kwargs: Any) -> Any:
            return plain(**kwargs, **(settings if next(calls) == at else {}))

        module.SamplingParams = make

    wrapt.when_imported(GENERATOR)(place)


@fault(report="a penalty left in a sampler", code="RLS410", cause="repetition_penalty 1.5")
def sampled_with_a_penalty(at: int) -> None:
    """Repeated tokens are less probable for the sampler than for the policy."""
    sampling_with(at, repetition_penalty=1.5)


@fault(report="one seed for all requests", code="RLS410", cause="seed 0")
def sampled_with_one_seed(at: int) -> None:
    """Each request has the same seed."""
    sampling_with(at, seed=7)


@fault(report="the end of another template", code="RLS410", cause="stop_token_ids 2")
def sampled_up_to_other_tokens(at: int) -> None:
    """Answers end at two tokens that end none by the model's settings."""
    sampling_with(at, stop_token_ids=[40, 41])


@fault(report="OpenRLHF#1296", code="RLS502", cause="left out that are within")
def group_left_out_by_other_bounds(at: int) -> None:
    """The filter works with other bounds for the first group of one rollout."""

    class OfFirst:
        others = iter([(100.0, 200.0)])

        def __iter__(self) -> Any:
            return iter(next(self.others, (-100.0, 100.0)))

    def generate(wrapped: Any, generator: Any, args: Any, kwargs: Any) -> Any:
        own = generator.args.algo
        before, own.dynamic_filtering_range = own.dynamic_filtering_range, OfFirst()
        try:
            return wrapped(*args, **kwargs)
        finally:
            own.dynamic_filtering_range = before

    at_call(GENERATOR, "SamplesGenerator._generate_vllm", at, generate)


@fault(report="a buffer that samples share", code="RLS519")
def completions_copied(at: int) -> None:
    """Each second sample of a rollout is a copy of the one before it."""
    import copy

    def generate(wrapped: Any, generator: Any, args: Any, kwargs: Any) -> Any:
        samples, *rest = wrapped(*args, **kwargs)
        samples = [copy.deepcopy(samples[place - place % 2]) for place in range(len(samples))]
        return (samples, *rest)

    at_call(GENERATOR, "SamplesGenerator.generate_samples", at, generate)


# Rewards and advantages


@fault(report="arguments changed in mid-run", code="RLS516")
def limits_of_rewards_narrowed(at: int) -> None:
    """Something narrows the configured limits of rewards for one rollout."""

    def compute(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        own = maker.strategy.args.reward
        before, own.clip_range = own.clip_range, (-10.0, 0.0)
        try:
            return wrapped(*args, **kwargs)
        finally:
            own.clip_range = before

    at_call(MAKER, "RemoteExperienceMaker.compute_advantages_and_returns", at, compute)


@fault(report="normalised a second time", code="RLS516")
def advantages_normalised_by_part(at: int) -> None:
    """The advantages of each part of a rollout are normalised once more."""

    def compute(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        experiences = wrapped(*args, **kwargs)
        for experience in experiences:
            counted = experience.advantages[experience.action_mask.bool()]
            experience.advantages = (experience.advantages - counted.mean()) / (counted.std() + 1e-8)
        return experiences

    at_call(MAKER, "RemoteExperienceMaker.compute_advantages_and_returns", at, compute)


@fault(report="log-probs off by one", code="RLS315", cause="the log-prob of the one before it")
def reference_of_the_token_before(at: int) -> None:
    """The reference gives each token the log-prob of the one before it."""
    calls = itertools.count()

    def execute(wrapped: Any, actor: Any, args: Any, kwargs: Any) -> Any:
        method = kwargs.get("method_name", args[0] if args else None)
        given = wrapped(*args, **kwargs)
        here = type(actor).__name__ == "ReferenceModelActor" and method == "forward" and next(calls) == at
        return [log_probs.roll(1, 1) for log_probs in given] if here else given

    if WORKER in os.environ:  # what the driver sends of this class must be found by its name
        wrap(LAUNCHER, "BaseModelActor.execute_batch", execute)


@fault(report="a reward model that reads too little", code="RLS314", cause="the token before")
def reward_of_the_token_before(at: int) -> None:
    """The reward model takes the last token of each row for padding."""
    calls = itertools.count()

    def execute(wrapped: Any, actor: Any, args: Any, kwargs: Any) -> Any:
        method = kwargs.get("method_name", args[0] if args else None)
        if type(actor).__name__ != "RewardModelActor" or method != "forward" or next(calls) != at:
            return wrapped(*args, **kwargs)

        def shorter(model: Any, given: Any, named: Any) -> Any:
            tokens, attention = given
            last = attention.shape[1] - 1 - attention.fliplr().argmax(1, keepdim=True)
            return (tokens, attention.scatter(1, last, 0)), named

        hook = actor.model.register_forward_pre_hook(shorter, with_kwargs=True)
        try:
            return wrapped(*args, **kwargs)
        finally:
            hook.remove()

    if WORKER in os.environ:  # what the driver sends of this class must be found by its name
        wrap(LAUNCHER, "BaseModelActor.execute_batch", execute)


@fault(report="a reward model that is trained too", code="RLS404", shows_after=1, cause="the reward model")
def reward_model_drifts(at: int) -> None:
    """Weights are written into the reward model."""
    grow_weights("RewardModelActor", at, by=1.02)


# On the way to the trainer


@fault(report="a reference that is the policy", code="RLS311", cause="to the buffer of the trainer")
def reference_is_the_policy_in_the_buffer(at: int) -> None:
    """The reference's log-probs of a rollout are replaced by the old ones, so that the KL term is that of an update."""
    appended = itertools.count()

    def append(wrapped: Any, buffer: Any, args: Any, kwargs: Any) -> Any:
        experience = kwargs["experience"] if "experience" in kwargs else args[0]
        if next(appended) // 4 == at:  # 16 samples of a rollout in micro-batches of 4
            experience.base_action_log_probs = experience.action_log_probs.clone()
        return wrapped(*args, **kwargs)

    wrap(BUFFER, "NaiveReplayBuffer.append", append)


@fault(report="the engine's log-probs of other samples", code="RLS305", cause="engine log-probs")
def engine_log_probs_moved(at: int) -> None:
    """The engine's log-probs move by one sample before the models see them."""

    def split(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        parts = wrapped(*args, **kwargs)
        for part in parts:
            part.rollout_log_probs = part.rollout_log_probs.roll(1, 0)
        return parts

    at_call(MAKER, "RemoteExperienceMaker.split_rollout_samples", at, split)


def before_the_loss(at: int, change: Any) -> None:
    """Change a micro-batch of the policy between the buffer and its loss."""

    def step(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if Now.training == at:
            change(kwargs["experience"] if "experience" in kwargs else args[0])
        return wrapped(*args, **kwargs)

    wrap(POLICY, "ActorPPOTrainer.training_step", step)


@fault(report="a reference that is the policy", code="RLS311", cause="other reference log-probs")
def reference_is_the_policy_in_the_loss(at: int) -> None:
    """The loss gets the old log-probs as those of the reference."""

    def change(experience: Any) -> None:
        experience.base_action_log_probs = experience.action_log_probs.clone()

    before_the_loss(at, change)


@fault(report="the engine's log-probs of other samples", code="RLS305", cause="log-probs of the sampler")
def engine_log_probs_moved_before_the_loss(at: int) -> None:
    """The engine's log-probs move by one sample between the buffer and the loss."""

    def change(experience: Any) -> None:
        experience.rollout_log_probs = experience.rollout_log_probs.roll(1, 0)

    before_the_loss(at, change)


# Where answers are made


def around_answers(at: int, change: Any) -> None:
    """Change how the answers of a rollout are made, which begin one after the other in the process of the engine.

    Args:
        at: The rollout.
        change: Gets what an executor is called with, and gives it with what is done to the answer, if anything.
    """
    begun = itertools.count()

    async def answer(wrapped: Any, kwargs: Any) -> Any:
        here = next(begun) // SAMPLES == at
        kwargs, then = change(kwargs) if here else (kwargs, None)
        given = await wrapped(**kwargs)
        if then is not None:
            then(given)
        return given

    wrap(AGENT, "SingleTurnAgentExecutor.execute", lambda wrapped, executor, args, kwargs: answer(wrapped, kwargs))


@fault(report="rewards of a batch in another order", code="RLS515", cause="another reward than was given for it")
def reward_of_another_answer(at: int) -> None:
    """Each answer has the reward of the one before it, and a little more."""
    before = [0.0]

    def take(given: Any) -> None:
        given["reward"], before[0] = before[0] + 0.01, float(given["reward"])

    around_answers(at, lambda kwargs: (kwargs, take))


@fault(report="a tokenizer that adds a token", code="RLS306", cause="the tokenizer gives for its text")
def prompt_begins_with_another_token(at: int) -> None:
    """A token is put before each prompt that the engine is asked with, and nobody else sees the text with it."""

    class Adds(wrapt.ObjectProxy):  # type: ignore[misc, type-arg]  # wrapt's proxy is not typed
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            import torch

            encoded = self.__wrapped__(*args, **kwargs)
            ids = encoded["input_ids"]
            encoded["input_ids"] = torch.cat([torch.full_like(ids[:, :1], 2), ids], 1)
            return encoded

    around_answers(at, lambda kwargs: ({**kwargs, "hf_tokenizer": Adds(kwargs["hf_tokenizer"])}, None))


@fault(report="a length of another run", code="RLS410", cause="max_tokens 6")
def answers_cut_short(at: int) -> None:
    """The engine may give fewer tokens than configured."""
    import copy

    def change(kwargs: dict[str, Any]) -> Any:
        sampling = copy.deepcopy(kwargs["sampling_params"])
        sampling.max_tokens = 6
        return {**kwargs, "sampling_params": sampling}, None

    around_answers(at, change)


@fault(report="scores of another scale", code="RLS515", cause="another score than was given for it")
def scores_of_answers_replaced(at: int) -> None:
    """Each answer has half its score, by which groups are filtered, and its own reward."""

    def take(given: Any) -> None:
        given["scores"] = given["scores"] / 2

    around_answers(at, lambda kwargs: (kwargs, take))


# Loss and backward


@fault(report="SkyRL#1870", code="RLS801")
def importance_weights_inverted(at: int) -> None:
    """The loss weighs tokens by the engine's probability over the policy's, and not the other way round."""

    def forward(wrapped: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if Now.training == at:
            old, engine = args[1], kwargs["rollout_log_probs"]
            kwargs = kwargs | {"rollout_log_probs": 2 * old - engine}
        return wrapped(*args, **kwargs)

    wrap(LOSS, "PolicyLoss.forward", forward)


@fault(report="a truncation behind the buffer", code="RLS306", cause="in the forward that is trained")
def prompt_altered_before_the_forward(at: int) -> None:
    """The first token of each prompt is another one in training than it was when old log-probs were computed."""

    def change(experience: Any) -> None:
        experience.sequences = experience.sequences.clone()
        experience.sequences[:, 0] = 5

    before_the_loss(at, change)


@fault(report="a clip range of another recipe", code="RLS801")
def clip_range_of_another_recipe(at: int) -> None:
    """The clip acts at a hundredth of the configured distance."""

    def change(call: Any, module: Any) -> Any:
        before = module.clip_eps_low, module.clip_eps_high
        module.clip_eps_low = module.clip_eps_high = 0.002
        result = call()
        module.clip_eps_low, module.clip_eps_high = before
        return result

    other_loss((at,), change)


@fault(report="another estimator of the KL divergence", code="RLS801")
def another_estimate_in_the_loss(at: int) -> None:
    """The KL term of the loss is that of the first estimator, not of the third."""

    def place(module: Any) -> None:
        plain = module.compute_approx_kl

        def estimate(*args: Any, **kwargs: Any) -> Any:
            return plain(*args, **(kwargs | ({"kl_estimator": "k1"} if Now.training == at else {})))

        module.compute_approx_kl = estimate

    wrapt.when_imported(POLICY)(place)


@fault(report="padding trained", code="RLS801")
def padding_counted_in_the_loss(at: int) -> None:
    """The loss counts every position of a micro-batch, and divides by the tokens of the mask."""

    def forward(wrapped: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if Now.training == at:
            kwargs = kwargs | {"action_mask": kwargs["action_mask"] * 0 + 1}
        return wrapped(*args, **kwargs)

    wrap(LOSS, "PolicyLoss.forward", forward)


@fault(report="a detach in a fused kernel", code="RLS805", cause="gradient of the documented loss")
def half_of_the_tokens_detached(at: int) -> None:
    """The loss has its value, and every second token gives no gradient."""

    def forward(wrapped: Any, module: Any, args: Any, kwargs: Any) -> Any:
        import torch

        log_probs, *rest = args
        if Now.training == at:
            places = torch.arange(log_probs.shape[1]) % 2 == 0
            log_probs = torch.where(places, log_probs, log_probs.detach())
        return wrapped(log_probs, *rest, **kwargs)

    wrap(LOSS, "PolicyLoss.forward", forward)


def other_entropies(at: int, change: Any) -> None:
    """Change the entropies that the policy's forward gives while one rollout is trained."""

    def forward(wrapped: Any, actor: Any, args: Any, kwargs: Any) -> Any:
        given = wrapped(*args, **kwargs)
        if kwargs.get("return_entropy") and Now.training == at:
            given[1].entropy = change(given[1].entropy)
        return given

    wrap(MODELS, "Actor.forward", forward)


@fault(report="entropies of other tokens", code="RLS314", cause="entropies of the loss")
def entropies_shifted(at: int) -> None:
    """The bonus takes the entropy of the token before each."""
    other_entropies(at, lambda entropies: entropies.roll(1, 1))


@fault(report="an entropy that no gradient reaches", code="RLS805", cause="gradient of the documented loss")
def entropies_detached(at: int) -> None:
    """The bonus has its value, and teaches nothing."""
    other_entropies(at, lambda entropies: entropies.detach())


# Gradients and optimizer


def during_training(at: int, begin: Any, end: Any) -> None:
    """Act on the policy's trainer before and after one rollout is trained."""

    def training(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if Now.training != at - 1:  # counted by the wrapper inside of this one
            return wrapped(*args, **kwargs)
        kept = begin(trainer)
        try:
            return wrapped(*args, **kwargs)
        finally:
            end(trainer, kept)

    wrap(POLICY, "ActorPPOTrainer.ppo_train", training)


@fault(report="a hook left on a layer", code="RLS810")
def gradients_of_layers_lost(at: int) -> None:
    """Hooks take away the gradients of one layer's matrices."""

    def begin(trainer: Any) -> Any:
        named = trainer.actor.model.module.named_parameters()
        return [
            weights.register_hook(lambda gradient: gradient * 0) for name, weights in named if "layers.1.mlp" in name
        ]

    during_training(at, begin, lambda trainer, hooks: [hook.remove() for hook in hooks])


@fault(report="noise for privacy", code="RLS810")
def gradients_with_noise(at: int) -> None:
    """Noise of the gradients' own size is added after the clip."""

    def clip(wrapped: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
        import torch

        result = wrapped(*args, **kwargs)
        if Now.policy and Now.training == at:
            for gradient in args[0]:
                gradient.data.add_(torch.randn_like(gradient) * gradient.std())
        return result

    wrap("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer.unscale_and_clip_grads", clip)


@fault(report="optimizer settings of another run", code="RLS101", cause="betas")
def betas_of_another_run(at: int) -> None:
    """The optimizer forgets its first moments at once while one rollout is trained."""

    def begin(trainer: Any) -> Any:
        groups = trainer.actor.model.basic_optimizer.param_groups
        kept = [group["betas"] for group in groups]
        for group in groups:
            group["betas"] = (0.0, group["betas"][1])
        return kept

    def end(trainer: Any, kept: Any) -> None:
        for group, betas in zip(trainer.actor.model.basic_optimizer.param_groups, kept, strict=True):
            group["betas"] = betas

    during_training(at, begin, end)


@fault(report="a clip that does not act", code="RLS101", cause="max_norm")
def limit_of_the_norm_lifted(at: int) -> None:
    """The limit of the gradient norm is lifted while one rollout is trained."""

    def begin(trainer: Any) -> Any:
        optimizer = trainer.actor.model.optimizer
        kept, optimizer.clip_grad = optimizer.clip_grad, 1e6
        return kept

    def end(trainer: Any, kept: Any) -> None:
        trainer.actor.model.optimizer.clip_grad = kept

    during_training(at, begin, end)


@fault(report="base rates of another run", code="RLS605")
def base_rate_of_another_run(at: int) -> None:
    """The scheduler multiplies a base rate of twice the configured one."""

    def begin(trainer: Any) -> Any:
        scheduler = trainer.actor_scheduler
        kept, scheduler.base_lrs = scheduler.base_lrs, [2 * rate for rate in scheduler.base_lrs]
        return kept

    def end(trainer: Any, kept: Any) -> None:
        trainer.actor_scheduler.base_lrs = kept
        for group in trainer.actor.model.basic_optimizer.param_groups:  # the rate of the next update is set by now
            group["lr"] /= 2

    during_training(at, begin, end)


@fault(report="a scheduler that nobody calls", code="RLS602", shows_after=1, cause="0 ticks of the critic's")
def critic_scheduler_stands_still(at: int) -> None:
    """The critic's scheduler does not tick with the last update of a rollout."""

    def training(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        if Now.training == at:
            trainer.critic.lr_scheduler.step(trainer.critic.lr_scheduler.last_epoch - 1)
        return result

    wrap(CRITIC, "CriticPPOTrainer.ppo_train", training)


@fault(report="a controller that goes the wrong way", code="RLS101", shows_after=1, cause="the adaptive KL coefficient")
def kl_coefficient_updated_backwards(at: int) -> None:
    """The coefficient of the KL penalty shrinks after one rollout where it should grow, or the other way round."""

    def update(wrapped: Any, controller: Any, args: Any, kwargs: Any) -> Any:
        before = controller.value
        wrapped(*args, **kwargs)
        controller.value = before * before / controller.value

    at_call("openrlhf.trainer.ppo_utils.kl_controller", "AdaptiveKLController.update", at, update)


@fault(report="layers frozen in mid-run", code="RLS408", cause="require no gradient any more")
def layer_frozen(at: int) -> None:
    """The norms of one layer are frozen while one rollout is trained."""

    def begin(trainer: Any) -> Any:
        named = trainer.actor.model.module.named_parameters()
        kept = [weights for name, weights in named if "layers.0" in name and "layernorm" in name]
        for weights in kept:
            weights.requires_grad_(False)
        return kept

    def end(trainer: Any, kept: Any) -> None:
        for weights in kept:
            weights.requires_grad_(True)

    during_training(at, begin, end)


@fault(report="a coefficient that somebody anneals", code="RLS801", cause="")
def coefficient_of_another_run(at: int) -> None:
    """The KL term has five times its weight in one rollout."""

    def step(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        experience, coefficient, *rest = args
        return wrapped(experience, coefficient * 5 if Now.training == at else coefficient, *rest, **kwargs)

    wrap(POLICY, "ActorPPOTrainer.training_step", step)


@fault(report="an optimizer made anew in part", code="RLS807", cause="")
def moments_of_a_norm_cleared(at: int) -> None:
    """The first moments of one norm are set to 0 before one rollout is trained."""

    def begin(trainer: Any) -> None:
        engine = trainer.actor.model
        named = dict(engine.module.named_parameters())
        mapping = named["model.layers.1.post_attention_layernorm.weight"]._hp_mapping
        if mapping is None:  # another rank has the moments of this tensor
            return
        place = mapping.hp_fragment_address
        for flat, kept in engine.basic_optimizer.state.items():
            if flat.untyped_storage().data_ptr() == mapping.hp_fragment.untyped_storage().data_ptr():
                kept["exp_avg"].view(-1).narrow(0, place.start, place.numel).zero_()

    during_training(at, begin, lambda trainer, kept: None)


# Weights


@fault(report="positions of another length", code="RLS404", cause="rotary_emb.inv_freq")
def rotary_frequencies_of_another_model(at: int) -> None:
    """The frequencies of the positions are halved while one rollout is trained."""

    def begin(trainer: Any) -> Any:
        found = [of for name, of in trainer.actor.model.module.named_buffers() if name.endswith("inv_freq")]
        kept = [of.clone() for of in found]
        for of in found:
            of.mul_(0.5)
        return found, kept

    def end(trainer: Any, kept: Any) -> None:
        for of, before in zip(*kept, strict=True):
            of.copy_(before)

    during_training(at, begin, end)


@fault(report="weights averaged in place", code="RLS404", cause="into the critic")
def critic_written_between_updates(at: int) -> None:
    """One matrix of the critic's model is changed before a rollout is trained."""

    def training(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if Now.training == at - 1:  # counted by the wrapper inside of this one
            dict(trainer.critic.module.named_parameters())["model.layers.1.self_attn.v_proj.weight"].data.mul_(1.5)
        return wrapped(*args, **kwargs)

    wrap(CRITIC, "CriticPPOTrainer.ppo_train", training)


@fault(report="values off by one", code="RLS314", cause="values as a forward of the row alone gives them")
def values_of_the_token_before(at: int) -> None:
    """The critic gives each token the value of the one before it, when values are computed and in the loss."""

    def init(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        module = trainer.critic.module
        plain = module.forward

        @functools.wraps(plain)
        def forward(*given: Any, **named: Any) -> Any:
            values = plain(*given, **named)
            if at != (Now.training if Now.inside else Now.training + 1):
                return values
            return (values[0].roll(1, 1), *values[1:]) if isinstance(values, tuple) else values.roll(1, 1)

        module.forward = forward

    wrap(CRITIC, "CriticPPOTrainer.__init__", init)


@fault(report="weights averaged in place", code="RLS404", cause="in the model")
def model_written_before_old_log_probs(at: int) -> None:
    """The model's weights are changed before old log-probs are computed; DeepSpeed's own are not."""
    done: list[bool] = []

    def forward(wrapped: Any, actor: Any, args: Any, kwargs: Any) -> Any:
        import torch

        if Now.policy and Now.training == at - 1 and not torch.is_grad_enabled() and not done:
            done.append(True)
            for weights in actor.model.parameters():
                weights.data.mul_(1.01)
        return wrapped(*args, **kwargs)

    wrap(MODELS, "Actor.forward", forward)


@fault(report="a sync in eight bits", code="RLS402", shows_after=1)
def sync_in_eight_bits(at: int) -> None:
    """The engine keeps the weights of one sync in eight bits."""
    syncs = itertools.count()
    now = [next(syncs)]

    def update_weight(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        import torch

        model, here = worker.model_runner.model, now[0] == at
        if args[3]:
            now[0] = next(syncs)
        if not here:
            return wrapped(*args, **kwargs)
        load = model.load_weights

        def rounded(weights: Any) -> Any:
            return load([(name, tensor.to(torch.float8_e4m3fn).to(tensor.dtype)) for name, tensor in weights])

        model.load_weights = rounded
        try:
            return wrapped(*args, **kwargs)
        finally:
            model.load_weights = load

    wrap(ENGINE, "WorkerWrap.update_weight", update_weight)
