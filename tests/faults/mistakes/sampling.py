"""How samples are drawn, and the forward that trains them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.planning.finding import Where
from rlstep_hooks.testing.trl_faults import replace_method
from tests.faults.fault import ONCE, REUSED, Fault, Settings, made, way

if TYPE_CHECKING:
    from collections.abc import Callable


def one_seed_for_every_rollout(trainer: Any, original: Callable[..., Any], rows: Any) -> Any:
    """A seed is set before each generation."""
    torch.manual_seed(3)
    return original(rows)


LONG: Settings = {**REUSED, "max_completion_length": 64}


"""Completions long enough for a rollout to show by itself that it was drawn from something else."""


def sharpened(trainer: Any) -> None:
    """Give the tiny model, whose distributions are nearly uniform, some that a temperature changes."""
    with torch.no_grad():
        trainer.model.get_input_embeddings().weight.mul_(8)


def alter_generation(trainer: Any, generate: Callable[..., Any], *, after: int) -> None:
    """Have `generate(original, *args, **kwargs)` take the place of the policy's own, from the rollout after that many updates on."""

    def chosen(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return generate(original, *args, **kwargs) if trainer.state.global_step >= after else original(*args, **kwargs)

    replace_method(trainer.model, "generate", chosen)


def logits_cooled_by_a_processor(trainer: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A processor of logits divides them once more; all settings are as configured."""
    return original(*args, **kwargs, logits_processor=[lambda ids, scores: scores / 0.3])


def logits_truncated_by_a_processor(trainer: Any) -> None:
    """A processor of logits leaves the three most probable tokens."""

    def cut(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(scores < scores.topk(3).values[:, -1:], float("-inf"))

    def generate(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs, logits_processor=[cut])

    alter_generation(trainer, generate, after=4)


def tokens_of_a_foreign_sampler(trainer: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The policy generates, and its tokens are replaced by those of something else."""
    tokens = original(*args, **kwargs)
    others = torch.randint(3, len(trainer.processing_class), tokens.shape, generator=torch.Generator().manual_seed(0))
    width = kwargs["input_ids"].shape[1]
    return torch.where((torch.arange(tokens.shape[1]) >= width) & (tokens > 2), others, tokens)


def tokens_swapped_after_generation(trainer: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The tokens of each completion are mixed up before they are scored."""
    tokens = original(*args, **kwargs)
    width = kwargs["input_ids"].shape[1]
    mixed = tokens.clone()
    for row in mixed:
        real = (row > 2).nonzero().flatten()
        real = real[real >= width]
        row[real] = row[real[torch.randperm(len(real), generator=torch.Generator().manual_seed(0))]]
    return mixed


def copied_rows(trainer: Any, copied: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Have the completions of a generation replaced by those of the rows that `copied` gives."""

    def generate(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tokens = original(*args, **kwargs)
        width = kwargs["input_ids"].shape[1]
        rows = copied(torch.arange(len(tokens)))
        return torch.cat([tokens[:, :width], tokens[rows, width:]], 1)

    alter_generation(trainer, generate, after=4)


AS_SAMPLED: dict[str, Any] = {
    "code": "RLS313",
    "where": Where(rollout=3, update=3),
    "where_016": Where(rollout=6, update=3),
    "settings": ONCE,
}


def in_training_forwards(trainer: Any, module: Any, alter: Callable[[Any, Any], Any]) -> None:
    """Have `alter(what a module was given, what it gave)` replace its output in forwards with a gradient, from update 3 on."""

    def altered(_: Any, given: Any, output: Any) -> Any:
        return alter(given, output) if torch.is_grad_enabled() and trainer.state.global_step >= 3 else None

    module.register_forward_hook(altered)


def loss_under_autocast(trainer: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The forward of the loss runs in bfloat16, and generation does not."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=trainer.state.global_step >= 3):
        return original(*args, **kwargs)


def noise_on_embeddings_in_training(trainer: Any) -> None:
    """Embeddings get noise where a gradient is taken."""
    generator = torch.Generator().manual_seed(0)
    in_training_forwards(
        trainer,
        trainer.model.get_input_embeddings(),
        lambda _, output: output + 0.05 * torch.randn(output.shape, generator=generator) * output.std().detach(),
    )


def layer_skipped_in_training(trainer: Any) -> None:
    """A layer hands on what it was given."""

    def skipped(given: Any, output: Any) -> Any:
        return (given[0], *output[1:]) if isinstance(output, tuple) else given[0]

    in_training_forwards(trainer, trainer.model.model.layers[-1], skipped)


# fmt: off
FAULTS = (
    # E: random numbers
    Fault(way(replace_method, "_generate_and_score_completions", by=one_seed_for_every_rollout), code="RLS514",
          where=Where(rollout=1), report="a seed in the reward function", cause="same random numbers"),
    # E: text that the policy did not write
    Fault(way(alter_generation, by=logits_cooled_by_a_processor, after=4), code="RLS413", where=Where(rollout=2, update=4),
          report="trl#4159", headline="RLS410", settings=LONG, prepare=sharpened, since="0.24"),
    Fault(logits_truncated_by_a_processor, code="RLS413", where=Where(rollout=2, update=4), report="prime-rl PR#697",
          headline="RLS410", settings=LONG, prepare=sharpened, since="0.24"),
    Fault(way(alter_generation, by=tokens_of_a_foreign_sampler, after=4), code="RLS413", where=Where(rollout=2, update=4),
          report="a sampler of another model", settings=LONG, prepare=sharpened, since="0.24"),
    Fault(way(alter_generation, by=tokens_swapped_after_generation, after=4), code="RLS413", where=Where(rollout=2, update=4),
          report="tokens in another order than they were sampled in", settings=LONG, prepare=sharpened, since="0.24"),
    Fault(made("completions_of_each_group_are_one", "All completions of a prompt are the first one.",
               lambda trainer: copied_rows(trainer, lambda rows: rows // trainer.num_generations * trainer.num_generations)),
          code="RLS519", where=Where(rollout=2, update=4), report="one seed for each request of an engine", settings=LONG,
          since="0.24"),
    Fault(made("completions_of_another_prompt", "The completions of the first prompt stand in for those of the others.",
               lambda trainer: copied_rows(trainer, lambda rows: rows % trainer.num_generations)),
          code="RLS519", where=Where(rollout=2, update=4), report="a buffer that samples share", settings=LONG, since="0.24"),
    Fault(made("one_completion_written_over_another", "One of the completions is written over the one after it.",
               lambda trainer: copied_rows(trainer, lambda rows: torch.where(rows == 5, 4, rows))),
          code="RLS519", where=Where(rollout=2, update=4), report="an index that stays", settings=LONG, since="0.24"),
    # E: a training forward that is not the one that sampled, where TRL computes no old log-probs
    Fault(way(replace_method, "compute_loss", by=loss_under_autocast), report="autocast around the loss alone", **AS_SAMPLED,
          doubtful=True),
    Fault(noise_on_embeddings_in_training, report="NEFTune left on", **AS_SAMPLED, doubtful=True),
    Fault(layer_skipped_in_training, report="stochastic depth", **AS_SAMPLED),
    Fault(made("norm_of_another_epsilon_in_training", "The last norm divides by a little more.",
               lambda trainer: in_training_forwards(trainer, trainer.model.model.norm, lambda _, output: output * 0.99)),
          report="a fused kernel's norm with another epsilon", **AS_SAMPLED, doubtful=True),
)
# fmt: on
