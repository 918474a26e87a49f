"""What a machine changed in the trainers' own source, and nobody had found: each is compared with the configuration now.

The expected value must not come from the code that is changed. What a user builds on purpose stays silent.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import TrainerCallback

from rlstep_hooks.testing.tiny_trl import tiny_model, tiny_reward, tiny_rows, tiny_tokenizer
from tests.mutants.operators import mutations
from tests.mutants.sources import LivingFunctions, source_of
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import codes, problems
from tests.systems.trl.random_runs.around import length

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REUSED = {"gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 6}
DECAYED = {**REUSED, "weight_decay": 0.1}
EVALUATED = {**REUSED, "eval_strategy": "steps", "eval_steps": 2, "evaluation_rows": 4}

SURVIVED: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "norms decay and matrices do not": (
        "transformers.trainer_pt_utils:get_parameter_names",
        "not any((pattern.search(k.lower()) for pattern in forbidden_layer_patterns))",
        "any((pattern.search(k.lower()) for pattern in forbidden_layer_patterns))",
        DECAYED,
        "optimizer.weight_decay of ",
    ),
    "betas are not handed over": (
        "transformers.trainer_optimizer:_get_adamw_torch",
        "ctx.optimizer_kwargs.update(ctx.adam_kwargs)",
        "pass",
        {**REUSED, "adam_beta2": 0.95},
        "optimizer.betas of group 0 = (0.9, 0.95)",
    ),
    "the plain kernel where the fused one is asked for": (
        "transformers.trainer_optimizer:_get_adamw_torch",
        "ctx.optimizer_kwargs.update({'fused': True})",
        "pass",
        {**REUSED, "optim": "adamw_torch_fused"},
        "optimizer.fused of group 0 = True",
    ),
    "autocast without bf16": (
        "transformers.training_args:TrainingArguments.__post_init__",
        "if self.bf16:",
        "if not self.bf16:",
        REUSED,
        "accelerator.mixed_precision = no",
    ),
    "an evaluation in training mode": (
        "transformers.trainer:Trainer.evaluation_loop",
        "model.eval()",
        "pass",
        EVALUATED,
        "training mode of the model in an evaluation = False",
    ),
    "evaluations at other updates": (
        "transformers.trainer_callback:DefaultFlowCallback.on_step_end",
        "state.global_step % state.eval_steps == 0",
        "state.global_step % state.eval_steps != 0",
        EVALUATED,
        "evaluations by eval_steps = one after every 2 updates",
    ),
    "updates of which no callback is told": (
        "transformers.trainer:Trainer._run_epoch",
        "self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)",
        "pass",
        {**EVALUATED, "max_steps": -1, "num_train_epochs": 1, "rows": 6},
        "evaluations by eval_steps = one after every 2 updates",
    ),
    "evaluations at the ends of passes too": (
        "transformers.trainer_callback:DefaultFlowCallback.on_epoch_end",
        "args.eval_strategy == IntervalStrategy.EPOCH and args.eval_delay <= state.epoch",
        "args.eval_delay <= state.epoch",
        EVALUATED,
        "evaluations by eval_steps = one after every 2 updates",
    ),
    "passes that end after an update": (
        "transformers.trainer_callback:CallbackHandler.on_epoch_begin",
        "False",
        "True",
        REUSED,
        "end of a pass of the loader = where its rows end",
    ),
    "another seed of the sampler": (
        "trl.trainer.utils:RepeatSampler.__init__",
        "self.generator.manual_seed(seed)",
        "pass",
        REUSED,
        "order of the training rows = a permutation by seed 7",
    ),
    "rows in the order of the data set": (
        "trl.trainer.utils:RepeatSampler.__iter__",
        "if self.shuffle:",
        "if False:",
        REUSED,
        "order of the training rows = a permutation by seed 7",
    ),
    "rows shuffled against the configuration": (
        "trl.trainer.utils:RepeatSampler.__iter__",
        "if self.shuffle:",
        "if True:",
        {**REUSED, "shuffle_dataset": False},
        "order of the training rows = that of the data set",
    ),
}
"""Module and function, source, what is made of it, settings of the run, and the beginning of what is expected."""


of_this_release = pytest.mark.skipif(
    RELEASE.release[:2] != (1, 16), reason="the changed lines are those of TRL 1.16 and transformers 5.23"
)


def trained_with(build: Callable[..., Any], place: str, before: str, after: str, settings: dict[str, Any]) -> Any:
    """The audit of a run with changed source."""
    module, _, function = place.partition(":")
    importlib.import_module(module)
    found = [one for one in mutations(module, source_of(module)) if one.function == function]
    mutation = min((one for one in found if (one.before, one.after) == (before, after)), key=lambda one: one.line)
    with LivingFunctions([module]).in_force(mutation):
        trainer, audit = build(**settings)
        trainer.train()
    return audit


@of_this_release
@pytest.mark.parametrize("name", SURVIVED)
def test_what_once_survived_is_found(build: Callable[..., Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, before, after, settings, expected = SURVIVED[name]
    if name == "rows shuffled against the configuration":  # the generator is made only where rows are shuffled
        from trl.trainer.utils import RepeatSampler

        monkeypatch.setattr(RepeatSampler, "generator", torch.Generator().manual_seed(3), raising=False)
    audit = trained_with(build, place, before, after, settings)
    told = [finding.expected for finding in audit.report.findings if finding.code == "RLS101"]
    assert any(text.startswith(expected) for text in told), problems(audit.report)
    assert audit.report.verdict == "FAIL"


@pytest.mark.skipif(
    RELEASE.release[:2] < (1, 16),
    reason="the transformers of older releases have an autocast of their own around a loss on a CPU",
)
def test_forwards_without_the_autocast_that_is_asked_for(build: Callable[..., Any]) -> None:
    """Mutants of accelerate's `Accelerator.__init__` leave it off, and all else is as configured."""
    trainer, audit = build(**REUSED, bf16=True)
    trainer.accelerator.native_amp = False
    trainer.train()
    told = [(found.expected, found.observed) for found in audit.report.findings if found.code == "RLS101"]
    setting = "autocast in the policy's forward"
    assert told == [(f"{setting} = bfloat16, as configured", f"{setting} = no")], problems(audit.report)


def test_fp16_on_a_cpu_where_accelerate_trains_in_float32(build: Callable[..., Any]) -> None:
    trainer, audit = build(**REUSED, fp16=True)
    trainer.train()
    assert problems(audit.report) == []


_LOSS, _GENERATE = (
    "trl.trainer.grpo_trainer:GRPOTrainer._compute_loss",
    "trl.trainer.grpo_trainer:GRPOTrainer._generate",
)

COMPUTED: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "a loss divided by its mask": (
        _LOSS,
        "per_token_loss * mask",
        "per_token_loss / mask",
        {**REUSED, "loss_type": "grpo"},
        "the loss is NaN or infinite, where the documented formula gives a number",
    ),
    "texts scored as messages": (
        _GENERATE,
        "if is_conversational({'prompt': prompts[0]}):",
        "if not is_conversational({'prompt': prompts[0]}):",
        REUSED,
        "RLS515",
    ),
    "tokens scored as texts": (
        "trl.trainer.grpo_trainer:GRPOTrainer._generate_and_score_completions",
        "self._calculate_rewards(inputs, prompts, completions, completion_ids_list)",
        "self._calculate_rewards(inputs, prompts, completion_ids_list, completions)",
        REUSED,
        "RLS515",
    ),
}
"""As in `SURVIVED`; last, what the first error says."""


@of_this_release
@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_computed_of_something_else_is_found(build: Callable[..., Any], name: str) -> None:
    *place, settings, expected = COMPUTED[name]
    audit = trained_with(build, *place, settings)
    errors = [finding for finding in audit.report.findings if finding.severity == "error"]
    assert errors, problems(audit.report)
    assert expected in str(errors[0])


@of_this_release
@pytest.mark.parametrize("kind", ["messages", "texts"])
def test_special_tokens_that_are_scored_too_are_found(build: Callable[..., Any], kind: str) -> None:
    rows = tiny_rows(12)
    if kind == "messages":
        rows = rows.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})
    module = "trl.trainer.grpo_trainer"
    decodes = "self.processing_class.batch_decode(completion_ids, skip_special_tokens=True)"
    found = [
        one
        for one in mutations(module, source_of(module))
        if (one.before, one.after) == (decodes, "self.processing_class.batch_decode(completion_ids)")
    ]
    # Messages are made first in the source, texts after them.
    mutation = sorted(found, key=lambda one: one.line)[kind == "texts"]
    with LivingFunctions([module]).in_force(mutation):
        # Long enough that some completions end by themselves; the others have no special token.
        trainer, audit = build(**REUSED, dataset=rows, reward=length, max_completion_length=48)
        trainer.processing_class.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
        trainer.train()
    first = next(finding for finding in audit.report.findings if finding.severity == "error")
    assert (first.code, first.where.rollout) == ("RLS515", 0), problems(audit.report)


def test_a_reward_function_may_write_to_the_completions(build: Callable[..., Any]) -> None:
    def shortened(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
        for place, text in enumerate(completions):
            completions[place] = text[: len(text) // 2]
            prompts[place] = ""
        return [float(len(text) % 5) for text in completions]

    trainer, audit = build(reward=[shortened, tiny_reward], **REUSED)
    trainer.train()
    assert not problems(audit.report)


def test_an_optimizer_of_ones_own_may_have_other_betas(build: Callable[..., Any]) -> None:
    trainer, audit = build(**DECAYED)
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-3, betas=(0.8, 0.9), weight_decay=0.3)
    trainer.train()
    assert not problems(audit.report)


def test_groups_of_ones_own_may_decay_otherwise(build: Callable[..., Any]) -> None:
    trainer, audit = build(**DECAYED)
    trainer.get_decay_parameter_names = lambda model: [name for name, _ in model.named_parameters()]
    trainer.train()
    assert not problems(audit.report)


@pytest.mark.parametrize(
    "settings",
    [{"shuffle_dataset": False}, {"num_train_epochs": 3, "max_steps": -1, "rows": 8}, {"seed": 11}, {"optim": "sgd"}],
    ids=["rows as they stand", "several passes", "another seed", "another optimizer"],
)
def test_what_is_configured_is_silent(build: Callable[..., Any], settings: dict[str, Any]) -> None:
    if "shuffle_dataset" in settings and RELEASE.release < (0, 17):
        pytest.skip("TRL 0.16 always shuffles")
    trainer, audit = build(**DECAYED | settings)
    trainer.train()
    assert not problems(audit.report)


def test_biases_and_layer_norms_do_not_decay(build: Callable[..., Any]) -> None:
    """GPT-2 has torch's LayerNorm, under names that say nothing of it."""
    import transformers

    tokenizer = tiny_tokenizer()
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=128, bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
        )
    )  # fmt: skip
    trainer, audit = build(model=model, **DECAYED)
    trainer.train()
    assert not problems(audit.report)


class KeepsLayersInEvaluationMode(TrainerCallback):  # type: ignore[misc]
    """Does so from the first evaluation on."""

    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        for layer in model.model.layers:
            layer.eval()
            layer.train = lambda mode=True, layer=layer: layer


def test_layers_that_stay_in_evaluation_mode_are_found(build: Callable[..., Any]) -> None:
    trainer, audit = build(model=tiny_model(tiny_tokenizer(), dropout=0.2), **EVALUATED)
    trainer.add_callback(KeepsLayersInEvaluationMode())
    trainer.train()
    [found] = [finding for finding in audit.report.findings if finding.code == "RLS101"]
    assert (found.severity, found.where.update) == ("error", 2)
    assert found.expected == "modules that drop something while the policy trains = 2, as configured"


def test_layers_that_are_in_evaluation_mode_from_the_start_are_meant(build: Callable[..., Any]) -> None:
    model = tiny_model(tiny_tokenizer(), dropout=0.2)
    first = model.model.layers[0]
    first.eval()
    first.train = lambda mode=True: first
    trainer, audit = build(model=model, **REUSED)
    trainer.train()
    assert "RLS101" not in codes(audit.report), problems(audit.report)


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_one_tensor_where_the_model_ties_them(build: Callable[..., Any], *, tied: bool) -> None:
    model = tiny_model(tiny_tokenizer())
    model.config.tie_word_embeddings = tied
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    trainer, audit = build(model=model, **REUSED)
    trainer.train()
    if tied and trainer.model.lm_head.weight is trainer.model.get_input_embeddings().weight:
        pytest.skip("this release loads the model anew, with one tensor for both")
    found = [finding.expected for finding in audit.report.findings if finding.severity == "error"]
    assert found == (["output embeddings that are the input embeddings = True, as configured"] if tied else [])


class Decides(TrainerCallback):  # type: ignore[misc]
    """Evaluates when its user wants it."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_evaluate = state.global_step == 3


def test_a_callback_may_decide_when_to_evaluate(build: Callable[..., Any]) -> None:
    trainer, audit = build(**EVALUATED)
    trainer.add_callback(Decides())
    trainer.train()
    assert not codes(audit.report) & {"RLS101"}, problems(audit.report)


class EndsPasses(TrainerCallback):  # type: ignore[misc]
    """Ends each pass when its user wants it, and evaluates then."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_epoch_stop = state.global_step % 2 == 0

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_evaluate = True


def test_a_callback_may_decide_when_passes_end(build: Callable[..., Any]) -> None:
    trainer, audit = build(**EVALUATED)
    trainer.add_callback(EndsPasses())
    trainer.train()
    assert not codes(audit.report) & {"RLS101"}, problems(audit.report)


@pytest.mark.parametrize("settings", [{"eval_strategy": "epoch"}, {"eval_strategy": "steps", "eval_steps": 4}, {}])
def test_evaluations_as_configured_are_silent(build: Callable[..., Any], settings: dict[str, Any]) -> None:
    trainer, audit = build(**{**REUSED, "evaluation_rows": 4, **settings})
    trainer.train()
    assert not codes(audit.report) & {"RLS101"}, problems(audit.report)


def test_an_evaluation_before_a_resume_does_not_come_again(build: Callable[..., Any], tmp_path: Path) -> None:
    saved = {**EVALUATED, "save_strategy": "steps", "save_steps": 2, "output_dir": tmp_path / "saved"}
    build(**saved)[0].train()
    trainer, audit = build(**saved)
    trainer.train(resume_from_checkpoint=str(tmp_path / "saved" / "checkpoint-4"))
    assert not codes(audit.report) & {"RLS101"}, problems(audit.report)


def test_somebody_may_look_at_the_loader_before(build: Callable[..., Any]) -> None:
    class Looks(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(
            self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any
        ) -> None:
            next(iter(train_dataloader))

    trainer, audit = build(**REUSED)
    trainer.add_callback(Looks())
    trainer.train()
    assert not problems(audit.report)


def test_a_sampler_of_ones_own_may_order_rows_otherwise(build: Callable[..., Any]) -> None:
    trainer, audit = build(**REUSED)
    original = trainer._get_train_sampler

    def sampler(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        made.generator.manual_seed(99)
        return made

    trainer._get_train_sampler = sampler
    trainer.train()
    assert not problems(audit.report)


def test_an_optimizer_of_ones_own_may_look_like_the_configured_one(build: Callable[..., Any]) -> None:
    trainer, audit = build(**REUSED, learning_rate=1e-3)
    weights = list(trainer.model.parameters())
    groups = [
        {"params": [of for of in weights if of.ndim > 1]},
        {"params": [of for of in weights if of.ndim < 2], "lr": 1e-4, "weight_decay": 0.0},
    ]
    # The class, the betas and the rate are those of the arguments, and the groups are parted as transformers parts them.
    trainer.optimizer = torch.optim.AdamW(groups, lr=1e-3)
    trainer.train()
    assert not problems(audit.report)
