"""Exports: whether what was written of a run fits together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule

if TYPE_CHECKING:
    from rlstep_hooks.record.events import Rollout


class ExportContradicts(Rule):
    """The samples of an exported run contradict each other or themselves.

    What it checks:
        In a run that `rlstep ingest` read: token ids, mask, log-probs and advantages of a sample have one length; rewards, advantages
        and log-probs are finite, and no log-prob is above 0; no sample is trained by older weights than those that drew it; no sample
        comes twice under one name; rollouts come once, in order, and none is left out; written ratios are those of the written
        log-probs; the engine's log-probs are not those of the neighbouring tokens.

    Why it matters:
        What is exported is what the trainer held. A mask that is one token short or log-probs that are one token off trained the
        wrong tokens, and no metric shows it.

    Example:
        ERROR RLS522 Exported samples contradict themselves · data epoch 0, rollout
        2, update 4
          expected  samples that fit together, and rollouts in order
          observed  mask and token ids of different lengths: 7 and 8, in 3 of 8
                    samples
          why       what is written so was trained so, or the export is not what was
                    trained
          fix       print one of these samples token by token; look at what pads,
                    packs, shifts or writes it

    What to do:
        Print one of these samples, token by token, with its mask and its log-probs. If the trainer held it so, look at the code that
        pads, packs or shifts; else at the code that writes the export.

    Known limits:
        - It sees what was written. A fault that the export hides is not found.
        - Rollouts that are left out are found where the export numbers them and the format writes each.
        - Log-probs of neighbouring tokens are recognised where the trainer's own stand beside the engine's.

    Sources:
        - https://github.com/pytorch/torchtune/issues/2792: log-probs that stand one token off
        - https://github.com/modelscope/ms-swift/pull/8427: a mask that stands one token off
    """

    code = "RLS522"
    title = "Exported samples contradict themselves"
    topics = ("samples",)
    nothing_seen = "the run was recorded while it trained, and not read from an export"
    optional = True

    def rollout(self, event: Rollout) -> None:
        """Look at what the reader of the export found."""
        if event.contradictions is None:
            return
        self.checks += 1
        for what, samples in event.contradictions.items():
            self.fail(
                expected="samples that fit together, and rollouts in order",
                observed=f"{what}, in {samples} of {event.samples} samples" if samples else what,
                why="what is written so was trained so, or the export is not what was trained",
                fix="print one of these samples token by token; look at what pads, packs, shifts or writes it",
                variant=what.partition(":")[0],
            )
