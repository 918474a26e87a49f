"""What is found of a fault of the corpus on two ranks, where it is not the rule that finds it in one process at the same event.

`python -m tests.systems.trl_ranks.differences` writes the table into docs/ranks.md. Imports no framework.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Iterator

Among = Literal["ddp", "fsdp2", "zero2", "zero3"]
"""Deployments in which the corpus is trained."""
NAMES: dict[Among, str] = {"ddp": "DDP", "fsdp2": "FSDP2", "zero2": "ZeRO-2", "zero3": "ZeRO-3"}
PAGE = Path(__file__).parents[3] / "docs" / "ranks.md"
BEGIN, END = "<!-- faults on two ranks: begin -->", "<!-- faults on two ranks: end -->"

Kind = Literal["same", "harmless", "elsewhere", "other", "refused", "missed"]
"""As in one process; the run ends with the weights of the healthy one; the same rule finds it elsewhere; another rule finds it; the
framework refuses it; nothing finds it."""


@dataclass(frozen=True)
class Difference:
    """Faults of which the same is found, for the same reason."""

    kind: Kind
    among: tuple[Among, ...]
    faults: tuple[str, ...]
    found: str
    """What finds it, as a rule's code, with a place where that differs; empty where nothing does."""
    why: str


ZERO: tuple[Among, ...] = ("zero2", "zero3")
EVERYWHERE: tuple[Among, ...] = get_args(Among)

DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "harmless",
        ZERO,
        ("optimizer_stepped_twice", "bad_batches_skipped", "step_left_out_on_one_rank"),
        "",
        "the optimizer that a callback gets does nothing under DeepSpeed: the engine steps, within the backward pass",
    ),
    Difference(
        "harmless",
        ZERO,
        ("optimizer_of_copied_weights", "optimizer_with_tensors_of_another_model", "layer_left_out_of_the_optimizer"),
        "",
        "transformers builds the engine's optimizer when training begins, whatever the trainer holds",
    ),
    Difference(
        "harmless",
        ZERO,
        (
            "gradients_zeroed_before_the_step",
            "only_weight_decay_moves_the_weights",
            "gradients_doubled_after_the_clip",
            "one_update_zeroed_by_a_guard",
            "gradients_halved_before_the_step",
            "last_gradients_zeroed_on_one_rank",
            "gradients_never_cleared",
            "gradients_kept_by_the_wrapped_model",
            "gradients_zeroed_late",
            "gradients_cleared_between_micro_batches",
        ),
        "",
        "DeepSpeed takes gradients out of the parameters as they come, and clears its own; what callbacks find there is not used",
    ),
    Difference(
        "harmless",
        ZERO,
        (
            "clip_that_only_measures",
            "clip_that_only_measures_on_one_rank",
            "gradients_of_the_last_update_added",
            "accelerate_divides_too",
        ),
        "",
        "accelerate clips and divides nothing under DeepSpeed",
    ),
    Difference(
        "harmless",
        ("zero3",),
        ("half_of_each_step_taken_back",),
        "",
        "between steps ZeRO-3's optimizer has no tensors in its groups, so that the callback finds none to take back",
    ),
    Difference(
        "elsewhere",
        ZERO,
        ("moments_cleared_at_every_update", "moments_cleared_on_one_rank", "steps_of_adam_counted_anew"),
        "RLS807 at update 5",
        "on_pre_optimizer_step comes after the engine's step, so that the first step that it changes is the next one",
    ),
    Difference("refused", ZERO, ("further_backward_pass",), "", "DeepSpeed reduces no parameter twice, and raises"),
    Difference(
        "refused",
        ZERO,
        ("gradients_clipped_by_value",),
        "",
        "torch's clip_grad_value_ raises where no parameter has a gradient",
    ),
    Difference(
        "refused",
        ("zero3",),
        ("old_log_probs_of_an_earlier_policy",),
        "",
        "a deep copy of a model that ZeRO-3 has cut cannot be used",
    ),
    Difference(
        "harmless",
        ("ddp",),
        ("gradients_never_cleared",),
        "",
        "the loop calls zero_grad of the wrapper; `gradients_kept_by_the_wrapped_model` is the same mistake there",
    ),
    Difference(
        "other",
        ("ddp", *ZERO),
        ("one_gradient_scaled_by_a_hook", "embedding_frozen_by_a_hook"),
        "RLS811",
        "gradients are reduced between a backward pass and the step: what autograd gave on all ranks is joined with what the optimizer "
        "gets",
    ),
    Difference(
        "harmless",
        ("fsdp2",),
        ("one_gradient_scaled_by_a_hook", "embedding_frozen_by_a_hook"),
        "",
        "the hooks are on parameters that FSDP2 replaces when training begins",
    ),
    Difference(
        "refused",
        ("fsdp2",),
        ("frozen_weights_swapped_in_for_generation", "moments_flattened_after_the_step", "optimizer_of_copied_weights"),
        "",
        "what they write or hold are no parts of FSDP2's, and torch or accelerate raises",
    ),
    Difference(
        "harmless",
        ("ddp", *ZERO),
        ("other_copy_on_one_rank",),
        "",
        "all ranks get the weights of rank 0 when the model is wrapped",
    ),
    Difference(
        "harmless",
        ("zero3",),
        ("weights_swapped_and_put_back", "weight_changed_on_one_rank", "other_start_on_one_rank"),
        "",
        "between passes ZeRO-3 holds no whole weights: what is written to a parameter that was released is not kept",
    ),
    Difference(
        "missed",
        ("ddp",),
        ("buffer_changed_on_one_rank",),
        "",
        "DDP gives all ranks the buffers of rank 0 in each forward of training; what rank 1 samples in between is drawn with log-probs "
        "that are 1e-4 nats away, which RLS313 takes for rounding",
    ),
    Difference(
        "missed",
        ("fsdp2",),
        ("other_start_on_one_rank",),
        "",
        "a part that is changed between the cut and the beginning of training is no copy of anything that a rank holds",
    ),
    Difference(
        "refused",
        ("fsdp2",),
        ("optimizer_with_tensors_of_another_model", "reference_that_is_never_synced"),
        "",
        "accelerate finds no such parameter among those that it has cut, and torch adds no whole tensor to a part of one",
    ),
    Difference(
        "other",
        ("fsdp2",),
        ("weight_changed_on_one_rank",),
        "RLS404",
        "each rank has parts of its own: what is written to one is seen by the rank itself, as a change without an update",
    ),
    Difference(
        "other",
        ("ddp", "fsdp2"),
        ("gradients_cleared_between_micro_batches",),
        "RLS811",
        "gradients are reduced within the backward pass: what autograd gave on all ranks is joined with what the optimizer gets",
    ),
    Difference(
        "other",
        ("fsdp2",),
        ("further_backward_pass",),
        "RLS811",
        "it reaches each rank's own part alone, so that what the optimizer gets is not what the ranks gave",
    ),
    Difference(
        "other",
        EVERYWHERE,
        ("window_counted_with_padding", "window_counted_by_the_micro_batch"),
        "RLS820",
        "the tokens of all ranks are not known to one of them: the joined records tell that the loss is divided by another number",
    ),
    Difference(
        "other",
        EVERYWHERE,
        ("last_token_masked_within_the_loss",),
        "RLS801",
        "a rank's micro-batch has parts of several groups, so that the value of its loss shows the mistake itself",
    ),
)
"""In the order of the table."""


def differences_of(deployment: str) -> dict[str, Difference]:
    """By fault."""
    return {fault: of for of in DIFFERENCES if deployment in of.among for fault in of.faults}


def table() -> str:
    """The table as Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "| deployment | fault | what finds it | why |"
    yield "|---|---|---|---|"
    for of in DIFFERENCES:
        among = "all" if of.among == EVERYWHERE else ", ".join(NAMES[each] for each in of.among)
        found = of.found or {"harmless": "nothing is wrong", "refused": "it cannot be made"}.get(of.kind, "nothing")
        yield f"| {among} | {', '.join(f'`{fault}`' for fault in of.faults)} | {found} | {of.why} |"


def page_with_table(text: str) -> str:
    """A page with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
    sys.exit(0)
