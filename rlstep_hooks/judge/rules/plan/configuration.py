"""The configuration itself: what the framework refuses, and what something else rewrote."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import (
    LAG,
    LENGTHS,
    LOSS,
    ORDER,
    OTHER_FORWARD,
    RATE,
    SAMPLES,
    STANDING_STILL,
    Effects,
    lasting,
)
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.record.events import (
    DROPPING,
    DUE_CHECKPOINTS,
    DUE_EVALUATIONS,
    ENDS_OF_PASSES,
    EVALUATED_ROWS,
    EVALUATION_MODE,
    FORWARD_AUTOCAST,
    MINIBATCH_ORDER,
    PLANNED_EVALUATIONS,
    RATE_SCHEDULE,
    ROW_ORDER,
    TIED,
)

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.record.events import ConfigChanged, RunStarted


class Refused(Rule):
    """The framework itself ends this launch with an error.

    What it checks:
        The conditions on sizes that the framework checks, in its own order and words: divisibility, lower bounds,
        settings that exclude each other.

    Why it matters:
        A framework checks some of these conditions only after minutes of start-up, or after the first rollout.

    Example:
        ERROR RLS110 The framework refuses this launch · the whole run
          expected  sizes that verl accepts
          observed  ValueError: train_batch_size (1024) must be >=
                    actor.ppo_mini_batch_size (2048)
          why       verl ends the run with this error at the start
                    (workers/config/actor.py validate)
          fix       choose actor.ppo_mini_batch_size 1024 or smaller

    What to do:
        Take one of the values that the finding names. They are the nearest valid ones on both sides.

    Known limits:
        - The rule knows the checks of the release that the plan is made for (`--version`). A later release may check
          more or less.
        - It knows checks on sizes and on settings that decide sizes. A launch can still fail for another reason:
          memory, files, a model that does not load.

    Sources:
        - https://github.com/volcengine/verl/pull/559: many users are unfamiliar with the relationship between these sizes
        - https://github.com/huggingface/trl/pull/3199: an error message about divisibility that was wrong
        - https://github.com/huggingface/open-r1/issues/249: 7 x 1 samples and groups of 8
    """

    code = "RLS110"
    title = "The framework refuses this launch"
    severity = "error"
    seen_in = "plan"
    report = "https://github.com/volcengine/verl/pull/559"


class ForeignSettings(Rule):
    """The launch gives settings that no release of the framework has.

    What it checks:
        The name of each setting against the complete list of every release that can be planned, where the program is
        the framework's own and checks names itself (Hydra, argparse), and each keyword of TRL's GRPOConfig and RLOOConfig in a
        Python file. A name close to a known one is a misspelling, which is RLS110. A setting that Hydra adds (`+name`) counts
        too, but where the framework hands it on unread (arguments of Ray, of an engine) or the launch names code of its own that
        may read it (`data.custom_cls.path` for `data.*`). It is found too where releases have the settings, but none has all of
        them: a checkout between two releases.

        It is an error where the framework would end the launch, or the program is somebody's own: the numbers are those of
        another trainer, so that the plan does not end with exit status 0. It is a warning where `--version` says whose numbers
        are asked for, where Hydra adds the setting, and between two releases.

    Why it matters:
        The framework itself ends such a launch at once. If the launch runs, it is a fork, and the loop of a fork may
        give other numbers: Search-R1's `rollout.n_agent` multiplies the samples of a prompt by 5.

    Example:
        ERROR RLS116 Settings that no release has: a fork? · the whole run
          expected  settings of verl 0.2
          observed  actor_rollout_ref.rollout.tries_per_prompt
          why       verl 0.2 itself ends the run: Could not override
                    'actor_rollout_ref.rollout.tries_per_prompt'. To append to your
                    config use +actor_rollout_ref.rollout.tries_per_prompt=. Where
                    it runs, it is a fork, whose code was not read
          fix       compare the plan with the fork's trainer, or take the settings
                    out; --version 0.2 plans it as verl 0.2 whatever it is

    What to do:
        If it is the framework itself, take the settings out. If it is a fork, compare the plan with the fork's own
        trainer.

    Known limits:
        - Lists of all settings are known for few frameworks; for others an unknown setting is named as not read.

    Sources:
        - https://github.com/langfengQ/verl-agent/issues/42: a fork of verl whose batch sizes mean something else
    """

    code = "RLS116"
    title = "Settings that no release has: a fork?"
    severity = "error"
    seen_in = "plan"
    report = "https://github.com/langfengQ/verl-agent/issues/42"


class SettingsWithoutEffect(Rule):
    """The launch gives settings that the framework takes and does not read.

    What it checks:
        Settings of an older release that the configuration of this release still has, so that no error is raised, while nothing
        reads them any more: verl's `custom_reward_function.*`, `reward_model.*` and `sandbox_fusion.*` in `main_ppo` of 0.9. And
        settings that no configuration has and that the program drops: what is left over in the YAML of `trl.scripts.grpo`, and from
        TRL 0.22 to 0.28 among its arguments and those of `trl grpo`.

    Why it matters:
        The run looks healthy and does something else. With verl's three sections the reward function of the launch is never called:
        verl's own rule for the data source gives the rewards, and DAPO's reward manager and its penalty for long samples are left out.

    Example:
        WARNING RLS118 Settings that have no effect · the whole run
          expected  settings that verl reads
          observed  custom_reward_function.path (now
                    reward.custom_reward_function.path)
          why       verl takes them without an error and reads nothing of them: the
                    run goes on as if they were not there
          fix       write them under the names that are read

    What to do:
        Write the setting under the name that the finding gives, or take it out.

    Known limits:
        - Of plans, only those of launches show it (`rlstep plan`, `rlstep rehearse`).
        - A program of somebody's own that calls a framework's program may move such settings itself, and one with the framework's
          parser may read more names: nothing is said of either.
        - A setting that is given under both names is not shown.

    Sources:
        - https://github.com/verl-project/verl/pull/7331: the older sections of rewards are silently ignored
    """

    code = "RLS118"
    title = "Settings that have no effect"
    severity = "warning"
    seen_in = "plan"
    report = "https://github.com/verl-project/verl/pull/7331"

    def started(self, event: RunStarted) -> None:
        """Look at what the system says of settings that nothing reads."""
        unread = event.facts.get("unread")
        if not unread:
            return
        self.checks += 1
        framework = self.schedule.framework
        self.fail(
            expected=f"settings that {framework} reads",
            observed=unread,
            why=f"{framework} takes them without an error and reads nothing of them: the run goes on as if they were not there",
            fix="write them under the names that are read",
        )


class ReleaseFault(Rule):
    """A release that is installed here has a known fault in this configuration.

    What it checks:
        The installed release of DeepSpeed against faults that raise no error, each of which this project has seen in real training:
        micro-batches of an update that ZeRO-2 loses, with optimizer offload too, and Adam that begins at step 1 without ZeRO. The
        stage, the offload, the precision and the micro-batches of the launch or of the run decide whether a fault concerns it.
        And OpenRLHF's averaged weights, which stand still with ZeRO-3.

    Why it matters:
        Such a run trains on a part of its samples and looks like any other: the loss falls, only more slowly. It is known before
        anything is trained.

    Example:
        WARNING RLS119 Installed release with a known fault · the whole run
          expected  the gradients of all micro-batches of an update are added up
          observed  DeepSpeed 0.18.2: ZeRO-2 loses all micro-batches of an update
                    but the last
          why       independent_gradient_partition_epilogue asks whether
                    averaged_gradients is empty, which it is until the boundary, and
                    so overwrites the accumulated gradients (all_grad_tensors) in
                    each micro-batch: the optimizer gets those of the last one
          fix       use DeepSpeed 0.18.3 or later, or ZeRO-1 or 3

    What to do:
        Install a release without it, or train with another stage. `rlstep doctor` lists the faults of what is installed.

    Known limits:
        - The plan of a launch looks at what is installed where the plan is made. A run looks at what it trains with.
        - A launch says its stage in the file that `deepspeed` names, or in its configuration of accelerate; where the file is not
          here, nothing is said.

    Sources:
        - https://github.com/deepspeedai/DeepSpeed/pull/7967: gradients of micro-batches that were dropped for a year and a half
        - https://github.com/huggingface/accelerate/issues/3877: ZeRO-2 that trains worse than the same run without it
        - https://github.com/huggingface/trl/issues/4631: the same in TRL
    """

    code = "RLS119"
    title = "Installed release with a known fault"
    severity = "warning"
    seen_in = "plan and run"
    optional = True
    nothing_seen = "nothing that trains here has a release whose faults are known"
    report = "https://github.com/deepspeedai/DeepSpeed/pull/7967"

    def started(self, event: RunStarted) -> None:
        """Look at what the system says of the releases that are installed."""
        faults = event.facts.get("release_faults") or ()
        self.checks += bool(faults)
        for fault in faults:
            self.fail(
                expected=fault["document"],
                observed=f"{fault['release']}: {fault['title']}",
                why=fault["code"],
                fix=fault["workaround"],
                variant=fault["name"],
            )


_SIZES = lasting(
    *ORDER, *LENGTHS, *RATE, *LAG, *SAMPLES, *LOSS, "RLS308", "RLS501", "RLS509", "RLS515", "RLS516", "RLS803"
)
"""What a size brings about that is another one than the plan was made with."""

_BATCHES_TAKEN = lasting("RLS501", "RLS503", "RLS504", *ORDER, *SAMPLES)
"""What it brings about that batches of an evaluation are taken for those of training."""

_EFFECTS: tuple[tuple[frozenset[str], Effects], ...] = (
    (frozenset({"lr", "rate", "warmup", "scheduler"}), lasting(*RATE, *STANDING_STILL, "RLS806")),
    (frozenset({"beta", "kl", "reference"}), lasting(*LOSS, "RLS308", "RLS311")),
    (frozenset({"temperature", "top"}), lasting("RLS403", "RLS410", "RLS413", "RLS519", *OTHER_FORWARD)),
    (frozenset({"clip", "epsilon", "cliprange", "delta", "loss", "coef"}), lasting(*LOSS)),
    (frozenset({"betas", "eps", "decay", "maximize", "momentum"}), lasting("RLS806")),
    (frozenset({"norm"}), lasting("RLS808")),
    (frozenset({"gamma", "lam", "lambda", "reward", "advantage"}), lasting("RLS508", "RLS515", "RLS516", "RLS517")),
    (frozenset({"target"}), lasting("RLS213", "RLS214")),
)
"""What another value of a setting brings about, by the words of its name."""


_TOLD: dict[str, tuple[str, str]] = {
    EVALUATION_MODE: (
        "the model stays in training mode while it evaluates, so dropout acts, and a trainer that asks `model.training` takes the "
        "batches for training ones: they use the buffers of training, and their numbers are logged as those of training",
        "look for what undoes `model.eval()`, which the trainer calls before it evaluates: a wrapper or patch that replaces the "
        "model's `eval` or `train`, or code that calls `model.train()` in an evaluation",
    ),
    DROPPING: (
        "the policy has dropout, and trains without it from here on, as if it were evaluated: what regularised the updates before does "
        "so no longer",
        "look for what puts layers into evaluation mode and is not undone by `model.train()`, which the trainer calls before each "
        "micro-batch: an evaluation, a generation, or a wrapper that replaces `train` or `eval`",
    ),
    FORWARD_AUTOCAST: (
        "the arguments ask for mixed precision, and the policy's forward does not compute in it: each update has other roundings than "
        "configured, and takes other memory and time",
        "look for what replaces the model's `forward` once the trainer has prepared it, and for code that turns autocast off",
    ),
    TIED: (
        "the model's configuration ties its word embeddings, and two tensors are trained in the place of one: a checkpoint keeps one "
        "of them, so what is saved and what is sent to an engine is not what trained",
        "call `model.tie_weights()` once the model is loaded and wrapped, or look for what replaces its head or its embeddings",
    ),
    ROW_ORDER: (
        "the rows do not come in the order that the configuration gives, so the seed does not reproduce this run, and an order that "
        "was made on purpose is lost",
        "look for code that replaces the sampler of the trainer's loader, its seed or its generator",
    ),
    PLANNED_EVALUATIONS: (
        "evaluations do not come when the configuration says: where one is missing, what depends on it (the best checkpoint, early "
        "stopping) is decided by others, and one that nobody asked for takes random numbers from training",
        "look for code that writes to the trainer's flag of a due evaluation or replaces its callbacks, and for `eval_delay`",
    ),
    ENDS_OF_PASSES: (
        "each pass of the loader ends after an update though no callback asks for it, so every pass begins with rows of another order: "
        "some come again before others have come once",
        "look for code that writes to `control.should_epoch_stop`, which the trainer sets back when a pass begins",
    ),
    MINIBATCH_ORDER: (
        "the samples of a rollout do not go into mini-batches as configured, so the seed does not reproduce this run; unshuffled, the "
        "samples of one prompt meet in one mini-batch, shuffled they do not",
        "look for code that replaces the loader of the mini-batches, its seed or its generator",
    ),
    DUE_EVALUATIONS: (
        "an evaluation that was due did not come, so nobody sees how the policy does when the configuration says",
        "look for code that replaces the trainer's loop or its validation",
    ),
    EVALUATED_ROWS: (
        "an evaluation leaves rows of its set out, so its numbers are those of other rows than everybody thinks",
        "look for code that replaces the validation, its loader or its data set",
    ),
    DUE_CHECKPOINTS: (
        "a checkpoint that was due was not written, so a run that ends early loses more than the configuration says",
        "look for code that replaces the trainer's loop or its way to save",
    ),
}
"""What it means, and what to do, where what differs from the configuration is no value that is computed with."""


class ConfigRewritten(Rule):
    """The configuration that trains is not the one that was written.

    What it checks:
        Settings that the plan depends on (batch sizes, accumulation, group size, reuse) keep their values from the
        construction of the trainer to the start of training, and from there to the last rollout. Sizes that the
        configuration derived from other settings still agree with them. What the trainer and its optimizer compute with is what
        the configuration says: clip range, KL weight, type and level of the loss, temperature, scale and weights of the rewards,
        learning rate, weight decay, betas; another value when training begins is an error. In verl the temperature, `top_p` and
        `top_k` that agent loops ask the engines for are those of training, or of `val_kwargs` in a validation, and no prompt is longer
        than `data.filter_overlong_prompts` lets it be (some of each step, in its single-turn agent loop). An error, too: the
        model evaluates in training mode, modules of the policy stop to drop what they dropped at the first update, the embeddings of a
        model that ties them are two tensors, the first rows of a pass come in another order than that of the seed or of the data set
        (TRL, verl), mini-batches have other samples than those that the seed, or the order of the rollout, gives them (verl), or what
        is due does not come: an evaluation by `eval_steps` (TRL, where one that neither the configuration nor a callback of
        somebody's own asks for is an error too, and so is a pass of the loader that is ended so), a validation by
        `trainer.test_freq` or a checkpoint by `trainer.save_freq` (verl), an evaluation by `eval.steps` or a checkpoint by
        `ckpt.save_steps` (OpenRLHF). So is an
        evaluation of these two that leaves out rows of its set, or draws another number of samples for each. In OpenRLHF, which
        shuffles without a seed of its own, rows or a rollout's samples are wrong where they come as they stand. Compared exactly. In
        OpenRLHF the KL coefficient that adapts (`algo.kl.target`) is what its formula makes of the divergence that it is updated with.

    Why it matters:
        Wrappers around a trainer have raised the batch of a device without a message: 8 became 16 (unsloth#3149). A
        value that changes during training takes effect at the next micro-batch, while buffers still have the old size.

    Example:
        WARNING RLS101 Configuration rewritten · data epoch 0, rollout 0, update 0
          expected  per_device_train_batch_size = 8, as when the trainer was built
          observed  per_device_train_batch_size = 16
          why       something other than the configuration you wrote sets this
                    value; the plan above has the new one
          fix       set per_device_train_batch_size explicitly where the
                    configuration is built, and look for the code that changes it

    What to do:
        Set the named value where the trainer is built: to the value that it got, or to the value that you meant.

    Known limits:
        - An optimizer that you build yourself is compared with its own beginning only.
        - The order of rows is not compared in a run that goes on from an earlier one, nor with a loader of your own; the report says
          so.
        - Settings are compared at each rollout. A value that changes and changes back between two rollouts is not seen.

    Sources:
        - https://github.com/unslothai/unsloth/issues/3149: a batch of 8 that became 16
        - https://github.com/unslothai/unsloth/pull/3609: its fix
        - https://github.com/unslothai/unsloth/issues/2583: one configuration that TRL refuses and another library changes silently
    """

    code = "RLS101"
    title = "Configuration rewritten"
    severity = "warning"
    topics = ("order", "settings")
    nothing_seen = "the observer of this system does not compare settings during the run"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._changed: dict[str, tuple[int, int]] = {}
        """Whole numbers that changed, by setting: before and after."""

    def note(self) -> str:
        """Say why the order of rows was not compared, if it was not."""
        why = self.progress.started.facts.get("row_order_unknown")
        return f"not the order of the rows: {why}" if why else ""

    def started(self, event: RunStarted) -> None:
        """Count the check, if the observer compares settings: a change arrives as an event of its own."""
        self.checks += bool(event.facts.get("compares_settings"))

    def config_changed(self, event: ConfigChanged) -> None:
        """Report the changed setting. The schedule of the learning rate is another rule's."""
        if event.name == RATE_SCHEDULE or self._follows(event):
            return
        produces = self._effects(event)
        if event.since == "configuration":
            why, fix = _TOLD.get(
                event.name,
                (
                    "training computes with another value than the configuration has, so what was configured is not what runs",
                    f"look for the code that sets {event.name}, or configure the value that is meant",
                ),
            )
            self.fail(
                severity="error",
                expected=f"{event.name} = {event.before}, as configured",
                observed=f"{event.name} = {event.after}",
                why=why,
                fix=fix,
                variant=event.name,
                produces=produces,
            )
            return
        since = "the trainer was built" if event.since == "construction" else "training began"
        if event.by_design:
            self.fail(
                severity="info",
                expected=f"{event.name} = {event.before}, as when {since}",
                observed=f"{event.name} = {event.after}",
                why="a callback may change it on purpose; the loss is compared with the value in force",
                fix=f"if nothing of yours sets {event.name}, look for the code that does",
                variant=event.name,
                produces=produces,
            )
            return
        self.fail(
            expected=f"{event.name} = {event.before}, as when {since}",
            observed=f"{event.name} = {event.after}",
            why="something other than the configuration you wrote sets this value; the plan above has "
            + ("the new one" if event.since == "construction" else "that of the beginning"),
            fix=f"set {event.name} explicitly where the configuration is built, and look for the code that changes it",
            variant=event.name,
            produces=produces,
        )

    def _follows(self, event: ConfigChanged) -> bool:
        """Whether this is a product of settings that changed exactly as much as one of them, which was reported already."""
        if not (_whole(event.before) and _whole(event.after)):
            return False
        parts = event.name.split(" * ")
        if len(parts) == 1:
            self._changed[event.name] = event.before, event.after
            return False
        changes = [self._changed[part] for part in parts if part in self._changed]
        return any(after * event.before == before * event.after for before, after in changes)

    def _effects(self, event: ConfigChanged) -> tuple[Effects, ...]:
        """What the change brings about: of a size that the plan was made with, in counts and order; else by what it sets."""
        sizes = {_last(name) for name, value in self.schedule.settings.items() if _whole(value)}
        if _whole(event.before) and _whole(event.after) and sizes & {_last(part) for part in event.name.split(" * ")}:
            return (_SIZES,)
        if event.name == EVALUATION_MODE:
            return (_BATCHES_TAKEN,)
        words = set(re.split(r"[^a-z]+", event.name.lower()))
        if "evaluations" in words:
            return ()
        return tuple(effects for names, effects in _EFFECTS if names & words)


def _last(name: str) -> str:
    """A setting's name without the section that it stands in."""
    return name.rpartition(".")[2]


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
