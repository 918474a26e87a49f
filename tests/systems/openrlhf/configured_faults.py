"""More faults for the corpus of OpenRLHF: a run that is consistent, and not the one that was configured."""

from __future__ import annotations

import itertools
import os
from typing import Any
from unittest import mock

import wrapt

from tests.systems.openrlhf.faults import (
    BUFFER,
    LAUNCHER,
    MODELS,
    POLICY,
    STRATEGY,
    WORKER,
    Now,
    before_the_loop,
    fault,
    wrap,
)

# Order


@fault(report="a loader that does not shuffle", code="RLS101", cause="order of the training rows")
def rows_as_they_stand(at: int) -> None:
    """The loader of prompts gives them in the order of the file."""

    def loader(wrapped: Any, strategy: Any, args: Any, kwargs: Any) -> Any:
        dataset, size, pinned, _, *rest = args
        return wrapped(dataset, size, pinned, False, *rest, **kwargs)

    wrap(STRATEGY, "DeepspeedStrategy.setup_dataloader", loader)


@fault(report="a loader that does not shuffle", code="RLS101", cause="order of the samples in mini-batches")
def samples_as_they_came(at: int) -> None:
    """The policy takes the samples of a rollout in the order of its buffer."""

    def place(module: Any) -> None:
        plain = module.DataLoader

        def make(*args: Any, **kwargs: Any) -> Any:
            return plain(*args, **kwargs | ({"shuffle": False} if Now.training == at else {}))

        module.DataLoader = make

    wrapt.when_imported(POLICY)(place)


# What is due


@fault(report="evaluations that stop", code="RLS101", cause="evaluations that are due")
def evaluations_left_out(at: int) -> None:
    """From a rollout on nothing is evaluated."""

    def put(trainer: Any) -> None:
        step, made = trainer.train_step, itertools.count()

        def train_step(*args: Any, **kwargs: Any) -> Any:
            if next(made) == at:
                trainer.eval_dataloader = None
            return step(*args, **kwargs)

        trainer.train_step = train_step

    before_the_loop(put)


@fault(report="checkpoints that stop", code="RLS101", cause="checkpoints that are due")
def checkpoints_left_out(at: int) -> None:
    """From a rollout on nothing is saved."""

    def put(trainer: Any) -> None:
        save, made = trainer.save_logs_and_checkpoints, itertools.count()

        def save_logs_and_checkpoints(*args: Any, **kwargs: Any) -> Any:
            own = trainer.args.ckpt
            kept, own.save_steps = own.save_steps, float("inf") if next(made) >= at else own.save_steps
            try:
                return save(*args, **kwargs)
            finally:
                own.save_steps = kept

        trainer.save_logs_and_checkpoints = save_logs_and_checkpoints

    before_the_loop(put)


# Checkpoints


@fault(report="a checkpoint of other weights", code="RLS703", cause="the weights of the run after")
def checkpoint_of_other_weights(at: int) -> None:
    """DeepSpeed's checkpoint behind a rollout has all weights a hundredth larger."""

    def save_ckpt(wrapped: Any, strategy: Any, args: Any, kwargs: Any) -> Any:
        engine = args[0] if args else kwargs["model"]
        if Now.training != at:
            return wrapped(*args, **kwargs)
        larger = {name: of * 1.01 for name, of in engine.module.state_dict().items()}
        with mock.patch.object(engine, "module_state_dict", return_value=larger):
            return wrapped(*args, **kwargs)

    wrap(STRATEGY, "DeepspeedStrategy.save_ckpt", save_ckpt)


@fault(report="moments of other updates in a checkpoint", code="RLS703", cause="the moments of the run after")
def checkpoint_of_other_moments(at: int) -> None:
    """DeepSpeed's checkpoint behind a rollout has moments that are a hundredth larger."""

    def save_ckpt(wrapped: Any, strategy: Any, args: Any, kwargs: Any) -> Any:
        engine = args[0] if args else kwargs["model"]
        if Now.training != at:
            return wrapped(*args, **kwargs)
        moments = [state["exp_avg"] for state in engine.basic_optimizer.state.values()]
        before = [of.clone() for of in moments]
        for of in moments:
            of.mul_(1.01)
        found = wrapped(*args, **kwargs)
        for of, was in zip(moments, before, strict=True):
            of.copy_(was)
        return found

    wrap(STRATEGY, "DeepspeedStrategy.save_ckpt", save_ckpt)


@fault(report="a model of other weights for others", code="RLS703", cause="the Hugging Face weights of the run after")
def saved_model_of_other_weights(at: int) -> None:
    """The model that is saved for others behind a rollout has all weights a hundredth larger."""

    def save_model(wrapped: Any, strategy: Any, args: Any, kwargs: Any) -> Any:
        inner = (args[0] if args else kwargs["model"]).model.module
        if Now.training != at:
            return wrapped(*args, **kwargs)
        larger = {name: of * 1.01 for name, of in inner.state_dict().items()}
        with mock.patch.object(inner, "state_dict", return_value=larger):
            return wrapped(*args, **kwargs)

    wrap(STRATEGY, "DeepspeedStrategy.save_model", save_model)


@fault(report="an average that stands still", code="RLS703", cause="moving average of the weights")
def average_left_out(at: int) -> None:
    """The weights that are published at the end are not averaged in a rollout."""

    def moving_average(wrapped: Any, strategy: Any, args: Any, kwargs: Any) -> Any:
        return None if Now.training == at else wrapped(*args, **kwargs)

    wrap(STRATEGY, "DeepspeedStrategy.moving_average", moving_average)


@fault(report="an evaluation as the training samples", code="RLS101", cause="eval.temperature")
def evaluation_with_the_settings_of_training(at: int) -> None:
    """Evaluations draw at the temperature of the training."""

    def put(trainer: Any) -> None:
        evaluate = trainer.evaluate
        trainer.evaluate = lambda step, **given: evaluate(step, **given | {"temperature": 1.0})

    before_the_loop(put)


# What samples say of their answers


def _of_samples(at: int, change: Any) -> None:
    """Change the samples of a rollout before the models see them."""

    def put(trainer: Any) -> None:
        generator, made = trainer.samples_generator, itertools.count()
        plain = generator.generate_samples

        def generate_samples(*args: Any, **kwargs: Any) -> Any:
            samples, *rest = plain(*args, **kwargs)
            if next(made) == at:
                for sample in samples:
                    change(sample)
            return (samples, *rest)

        generator.generate_samples = generate_samples

    before_the_loop(put)


@fault(report="a flag that is turned round", code="RLS516", cause="than those that were cut off")
def flags_of_cut_off_answers_turned_round(at: int) -> None:
    """Samples say that their answers were cut off where they ended, and the other way round."""

    def change(sample: Any) -> None:
        sample.truncated = ~sample.truncated.bool()

    _of_samples(at, change)


@fault(report="a length that counts the prompt", code="RLS516", cause="other lengths than those of the answers")
def lengths_with_their_prompts(at: int) -> None:
    """The length of an answer counts its prompt too."""

    def change(sample: Any) -> None:
        sample.response_length = sample.total_length.clone().to(sample.response_length.dtype)

    _of_samples(at, change)


# Temperatures


@fault(report="a temperature that one forward does not get", code="RLS314", cause="temperature: not applied")
def policy_at_another_temperature(at: int) -> None:
    """Old log-probs and those of the loss are not those of the temperature that answers are drawn at."""

    forwards_at_a_temperature_of_one(at)


def forwards_at_a_temperature_of_one(at: int) -> None:
    """The logits of each forward of the policy for one rollout, in the refresh and in training, are not divided by the temperature."""

    def forward(wrapped: Any, actor: Any, args: Any, kwargs: Any) -> Any:
        if not Now.policy or Now.training != (at if Now.inside else at - 1):
            return wrapped(*args, **kwargs)
        kept, actor.temperature = actor.temperature, 1.0
        try:
            return wrapped(*args, **kwargs)
        finally:
            actor.temperature = kept

    wrap(MODELS, "Actor.forward", forward)


@fault(report="a temperature that one forward does not get", code="RLS315", cause="temperature: not applied")
def reference_at_another_temperature(at: int) -> None:
    """The reference scores a rollout at a temperature of 1."""
    calls = itertools.count()

    def execute(wrapped: Any, actor: Any, args: Any, kwargs: Any) -> Any:
        method = kwargs.get("method_name", args[0] if args else None)
        if type(actor).__name__ != "ReferenceModelActor" or method != "forward" or next(calls) != at:
            return wrapped(*args, **kwargs)
        kept, actor.model.temperature = actor.model.temperature, 1.0
        try:
            return wrapped(*args, **kwargs)
        finally:
            actor.model.temperature = kept

    if WORKER in os.environ:  # what the driver sends of this class must be found by its name
        wrap(LAUNCHER, "BaseModelActor.execute_batch", execute)


# Dynamic batches


@fault(report="OpenRLHF, arXiv 2604.23747, the mean of means", code="RLS801")
def divisor_of_a_micro_batch(at: int) -> None:
    """The loss of each dynamic micro-batch is divided by its own tokens, and not by those of its update."""

    def setup(wrapped: Any, buffer: Any, args: Any, kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        if Now.policy and Now.training == at:
            parts = buffer.dynamic_indices
            tokens = [sum(float(buffer.items[place].action_mask.sum()) for place in part) for part in parts]
            buffer.dynamic_batch_num_tokens = tokens

    wrap(BUFFER, "NaiveReplayBuffer.setup_dynamic_batch", setup)
