"""RLS7xx: resuming from a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.judge.effects import RATE, lasting
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.finding import Where, kind_of
from rlstep_hooks.planning.words import number
from rlstep_hooks.record.events import SAVED

if TYPE_CHECKING:
    from collections import Counter

    from rlstep_hooks.judge.outcome import RuleOutcome
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.record.events import RunEnded, RunStarted, Update


_WEIGHTS = {
    "others": "other weights",
    "those before the checkpoint": "the weights from before the checkpoint was loaded",
}
"""What a resumed run may hold instead of the weights of its checkpoint."""


def _goes_on(step: int | None, saved: int | None) -> bool | None:
    """Whether an optimizer that the configuration does not load has steps all the same; None where none were saved."""
    return None if step is None or saved == 0 else step > 0


class CheckpointNotRestored(Rule):
    """A resumed run does not hold what its checkpoint should have brought back.

    What it checks:
        When a resumed run begins to train: the probed weights, bit for bit, and the optimizer's count of steps against
        what the run that saved the checkpoint noted beside its records, where it did; the position of the learning rate
        against the rollouts that the plan has before this one; and the loader's position against the rows that these
        rollouts took. In TRL against the files of the checkpoint: the first rows of up to 16 tensors and of their moments,
        the optimizer's count of steps, the position of the learning rate, and the states of torch's and Python's random
        generators once they are loaded; a reference model that has the weights of the checkpoint is a warning. With FSDP and
        DeepSpeed against what each process noted of its part when it saved, all of it.
        Elsewhere, without a note, weights that are still those from before the checkpoint was loaded, and an
        optimizer without a step, are errors all the same. Where the configuration loads the weights and leaves out the
        optimizer, an optimizer that begins without a step is a warning; what else it leaves out is not looked at.

    Why it matters:
        A checkpoint that is not loaded raises no error. Training goes on from the first weights under the old step
        counter, warms up once more, forgets its momentum, or sees the same rows again.

    Example:
        ERROR RLS702 Checkpoint not restored · the whole run
          expected  the weights that the checkpoint holds
          observed  other weights
          why       training goes on under the old step counter, and not from where
                    the checkpoint was made
          fix       look at the path that is loaded, at which parts of it are
                    loaded, and at what changes model or optimizer afterwards

    What to do:
        Look at the path that is loaded, at what the configuration loads, and at what happens to model and optimizer
        afterwards.

    Known limits:
        - The state of random generators and the optimizer's moments are compared only where a system is said to compare them.
        - Where each process holds a part, what it holds is compared with what it noted beside its records when it saved. With another
          folder of records some rows of its part are read from the files of DeepSpeed's ZeRO and of FSDP2; nothing is of FSDP1's.

    Sources:
        - https://github.com/volcengine/verl/pull/5725: what a resumed run must restore
        - https://github.com/volcengine/verl/issues/7401: a resumed run that trains nothing
        - https://github.com/THUDM/slime/issues/1695: a resume that loses the engine's weights
    """

    code = "RLS702"
    title = "Checkpoint not restored"
    topics = ("checkpoints",)
    nothing_seen = "the run did not resume from a checkpoint, or what it restored cannot be read"
    produces = (lasting("RLS807", "RLS205", "RLS206", "RLS509", *RATE),)

    cannot_see = "what the run restored from its checkpoint was not observed"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._random_states_seen = False

    def absent(self) -> bool:
        """Whether the run did not resume."""
        return super().absent() and not self.progress.resumed

    def reason(self) -> str:
        """Why nothing was compared."""
        return str(self.progress.started.facts.get("restored_unknown") or "") or super().reason()

    def outcome(self, matched: Counter[type]) -> RuleOutcome:
        """Judge as any rule does; where nothing was compared, give the observer's own reason."""
        found, unknown = super().outcome(matched), self.progress.started.facts.get("restored_unknown")
        return msgspec.structs.replace(found, reason=str(unknown)) if found.missed and unknown else found

    def started(self, event: RunStarted) -> None:
        """Compare what was restored with what was saved, or with the plan."""
        self.missed += bool(self.progress.resumed and event.facts.get("restored_unknown"))
        rollouts = event.facts.get("position", {}).get("rollouts", 0)
        if not rollouts:  # the framework counts updates
            self._role(event.facts.get("restored_policy"), "", event.start_updates)
            return
        self._role(event.facts.get("restored_policy"), "", max(rollouts - self.schedule.frozen_rollouts, 0))
        self._role(event.facts.get("restored_critic"), " of the critic", rollouts)
        self._loader(event.facts.get("loader_position"))

    def _role(self, restored: Any, of: str, rollouts: int) -> None:
        if restored is None or not rollouts:
            return
        weights, step, tick = restored["weights"], restored["optimizer_step"], restored["lr_tick"]
        if weights == "as saved" or weights in _WEIGHTS:
            observed = _WEIGHTS.get(weights, weights)
            self._compare(f"the weights{of} that the checkpoint holds", observed, weights == "as saved")
        if step is not None:
            saved = restored["saved_optimizer_step"]
            planned = "1 step or more" if saved is None else number(saved, "steps")
            right = step > 0 if saved is None else step == saved
            self._compare(f"an optimizer{of} after {planned}", f"an optimizer{of} after {number(step, 'steps')}", right)
        saved = restored["saved_optimizer_step"]
        if not self.holds(_goes_on(restored.get("optimizer_left_out"), saved)):
            steps = "1 step or more" if saved is None else number(saved, "steps")
            self.fail(
                severity="warning",
                expected=f"an optimizer{of} after {steps}",
                observed=f"an optimizer{of} that begins anew: the configuration leaves it out of what is loaded",
                why="the moments are lost: the first updates after the resume are not those that the run would have made without it",
                fix="save and load the optimizer with the weights",
                variant=f"left out{of}",
            )
        saved = restored["saved_lr_tick"]
        if tick is not None and (saved is not None or self.schedule.lr_clock == "rollout"):
            due = rollouts if saved is None else saved
            expected, observed = (f"the learning rate{of} at tick {at}" for at in (due, tick))
            self._compare(expected, observed, tick == due)

        moments = restored.get("moments", "unknown")
        if moments != "unknown":
            expected = f"the moments{of} that the checkpoint holds"
            self._compare(expected, "other moments, or none", moments == "as saved")
        reference = restored.get("reference")
        if not self.holds(None if reference is None else reference != "of the checkpoint"):
            self.fail(
                severity="warning",
                expected="a reference model with the weights that the run began with",
                observed="one with the weights of the checkpoint",
                why="the divergence is measured from the checkpoint on, and no longer from where the run began",
                fix="build the trainer with the model that the interrupted run began with, and resume from the checkpoint",
                variant="reference",
            )

    def update(self, event: Update) -> None:
        """Look at the random generators, which are loaded after training has begun."""
        found = self.progress.started.facts.get("restored_random_states")
        if self._random_states_seen or not isinstance(found, dict):
            return
        self._random_states_seen = True
        for name, right in found.items():
            self._compare(f"the state of {name}'s random generator that the checkpoint holds", "another state", right)

    def _loader(self, position: Any) -> None:
        if position is not None:
            planned, observed = (f"the loader {number(batches, 'batches')} into its pass" for batches in position)
            self._compare(planned, observed, position[0] == position[1])

    def _compare(self, expected: str, observed: str, right: bool) -> None:
        if not self.holds(right):
            self.fail(
                expected=expected,
                observed=observed,
                why="training goes on under the old step counter, and not from where the checkpoint was made",
                fix="look at the path that is loaded, at which parts of it are loaded, and at what changes model or optimizer "
                "afterwards",
                variant=kind_of(expected),
            )


class CheckpointHoldsOthers(Rule):
    """A checkpoint does not hold what the run held when it was made.

    What it checks:
        When a checkpoint has been made: the first rows of up to 16 of its tensors, and of their moments, against those of the
        model and of the optimizer, bit for bit in the dtype of the model. In verl with FSDP2 each process compares its part. In
        OpenRLHF the weights of DeepSpeed's checkpoints, and those of the model that is saved for others, once training is over too.
        Where that is a moving average of the weights, it has been `(1 - ema_beta) * weights + ema_beta * average` after each update,
        but for two roundings of some of its numbers; not where rounding hides all that updates change.

    Why it matters:
        What is evaluated, published and resumed from is the checkpoint. Training and its logs show nothing of weights that are
        gathered before the last step, cast on the way, or those of another model.

    Example:
        ERROR RLS703 Checkpoint holds others than the run · update 2
          expected  the weights of the run after 2 updates in its checkpoint
          observed  other weights
          why       what is evaluated and resumed from is not what was trained
          fix       look at what gathers, casts or merges weights when a checkpoint
                    is made, and at overrides of the trainer's saving

    What to do:
        Look at what gathers, casts or merges weights when a checkpoint is made, and at overrides of the trainer's saving.

    Known limits:
        - Files in other forms than transformers, PEFT and the framework itself write are not read. A file with whole tensors is read by
          the process that writes it. Flat parameters of FSDP1 are compared nowhere.

    Sources:
        - https://huggingface.co/docs/accelerate/usage_guides/deepspeed: a setting by which placeholders are saved for weights
    """

    code = "RLS703"
    title = "Checkpoint holds others than the run"
    topics = ("checkpoints",)
    nothing_seen = "the run made no checkpoint, or none that can be read"
    optional = True

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._told = dict.fromkeys(SAVED, 0)
        self._updates = progress.started.start_updates
        self._latest: Where | None = None

    def update(self, event: Update) -> None:
        """Look at the checkpoints that were made before it."""
        self._look()
        if event.role == "policy":
            self._updates, self._latest = event.index + 1, self.progress.where_shown()

    def ended(self, event: RunEnded) -> None:
        """Look at the checkpoint that was made last."""
        self._look()

    def _look(self) -> None:
        facts = self.progress.started.facts
        found = {role: of for role, fact in SAVED.items() if isinstance(of := facts.get(fact), dict)}
        if found:
            self.checks = sum(int(of["compared"]) for of in found.values())
        for role, of in found.items():
            for counted, part in of["wrong"][self._told[role] :]:
                self._told[role] += 1
                named = part if role == "policy" else f"{part} of the {role}"
                if counted is None:
                    self._fail(self._updates, named, self._latest)
                else:
                    self._fail(counted, named, Where(update=counted))

    def _fail(self, updates: int, part: str, where: Where | None) -> None:
        self.fail(
            expected=f"the {part} of the run after {number(updates, 'updates')} in its checkpoint",
            observed=f"other {part}",
            why="what is evaluated and resumed from is not what was trained",
            fix="look at what gathers, casts or merges weights when a checkpoint is made, and at overrides of the trainer's saving",
            where=where,
            variant=part,
        )


class ResumeFailed(Rule):
    """A resumed run raised before it trained anything.

    What it checks:
        A run that begins from a checkpoint trains at least one micro-batch.

    Why it matters:
        Samples of the rollout that the checkpoint interrupted are not saved. A framework that expects them fails with
        an error that names neither the cause nor the checkpoint.

    Example:
        ERROR RLS701 Resume failed · data epoch 0, rollout 0, update 6
          expected  training goes on from update 6
          observed  TypeError: 'NoneType' object is not subscriptable
          why       the run needs something that the checkpoint does not hold
          fix       resume from a checkpoint at the boundary of a rollout's cycle

    What to do:
        Resume from a checkpoint between two rollouts, and save at multiples of the updates of a rollout.

    Known limits:
        - It looks at runs that raised. A resume that goes on wrongly is RLS702, RLS202 or RLS205.

    Sources:
        - https://github.com/huggingface/trl/pull/3148: inputs that are None after a resume
        - https://github.com/huggingface/trl/issues/3665: the error that a user sees
    """

    code = "RLS701"
    title = "Resume failed"
    topics = ("order",)
    nothing_seen = "the run did not resume from a checkpoint"
    produces = (lasting("RLS702", "RLS807", "RLS205", "RLS206", "RLS509", *RATE),)

    def started(self, event: RunStarted) -> None:
        """Count the check of a resumed run."""
        self.checks += event.start_updates > 0

    def ended(self, event: RunEnded) -> None:
        """Look at how a resumed run ended."""
        if not self.progress.resumed or event.status != "raised" or self.progress.trained:
            return
        self.fail(
            expected=f"training goes on from update {self.progress.started.start_updates}",
            observed=event.error,
            why="the run needs something that the checkpoint does not hold",
            fix="resume from a checkpoint at the boundary of a rollout's cycle",
        )
