"""verl's live configuration made small, in the process that starts Ray: after Hydra has put it together and before verl reads it.

So the command line, files of overrides and scripts that build a configuration themselves are all read by Hydra alone.
"""

from __future__ import annotations

import copy
import math
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import wrapt

from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.rehearse.messages import CannotRehearseError, said, say, settings
from rlstep_hooks.rehearse.models import place_of
from rlstep_hooks.rehearse.places import stand_in
from rlstep_hooks.rehearse.rewards import completions_may_have
from rlstep_hooks.systems.verl.rehearse.host import HOST, LEFT_OUT, RESPONSE, SEPARATE, impossible, is_separate
from rlstep_hooks.systems.verl.rehearse.rate import look_at_rate
from rlstep_hooks.systems.verl.rehearse.rows import Taken, take
from rlstep_hooks.systems.verl.rehearse.sizes import Shrunk, Sizes, pieces, shrink
from rlstep_hooks.systems.verl.unread import PROGRAM, SECTIONS, unread, worded

if TYPE_CHECKING:
    from collections.abc import Iterator

_STARTS = 54.0
"""Seconds that a run takes whatever its sizes, on two idle cores: 48 from the command to the first rollout and after the last, the rest
for its updates. There are two runs, the resumed one included."""
_ACTOR, _ROLLOUT, _REFERENCE = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))

_FILES = (
    "reward.custom_reward_function.path",
    "data.custom_cls.path",
    f"{_ROLLOUT}.multi_turn.tool_config_path",
    f"{_ROLLOUT}.multi_turn.function_tool_path",
    f"{_ROLLOUT}.multi_turn.interaction_config_path",
    f"{_ROLLOUT}.agent.agent_loop_config_path",
)
"""Settings that name a file of the user's code or of its settings."""

_done: list[Any] = []
"""Configurations that are small already."""


def at_main(module: Any) -> None:
    """`verl.utils.device`: what verl's programs call first with their configuration."""
    wrapt.wrap_function_wrapper(module, "auto_set_device", _around)


def at_ray(module: Any) -> None:
    """`verl.trainer.constants_ppo`: what verl calls before it starts Ray, also for programs of somebody's own."""
    wrapt.wrap_function_wrapper(module, "get_ppo_ray_runtime_env", _around)


def at_check(module: Any) -> None:
    """`verl.utils.config`: verl's own check; with `--confirm` it is all that runs."""
    if settings().refuse:
        wrapt.wrap_function_wrapper(module, "validate_config", _only_checked)


def _only_checked(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    wrapped(*args, **kwargs)
    say("accepted")
    raise SystemExit(0)


def _around(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    config = args[0] if args else kwargs.get("config")
    if config is not None and not settings().refuse and not any(config is each for each in _done):
        _done.append(config)
        try:
            _make_small(config)
        except CannotRehearseError as error:
            say("launch", str(error), level="impossible")
            raise SystemExit(2) from error
    return wrapped(*args, **kwargs)


class _Length(msgspec.Struct, frozen=True, kw_only=True):
    """How long the small run is."""

    each: int
    """Rollouts of a data epoch."""
    epochs: int
    save: int
    """Rollouts between checkpoints."""

    @property
    def rollouts(self) -> int:
        return self.each * self.epochs


def _make_small(config: Any) -> None:
    from omegaconf import OmegaConf, open_dict

    _places(config)
    why = impossible(config)
    if why:
        raise CannotRehearseError(why)
    real = copy.deepcopy(config)
    _check(real)
    _load_reward(real)
    sizes = _sizes(real)
    passes = int(real.actor_rollout_ref.actor.ppo_epochs)
    seconds = max(10.0, settings().budget - 2 * _STARTS)
    small = shrink(sizes, seconds=seconds, passes=passes, rollouts=settings().rollouts)
    with open_dict(config):
        OmegaConf.set_struct(config, False)
        tokenizer = _models(config)
        length = _length(real, small)
        rows, taken = _rows(config, real, small, length, tokenizer)
        _settings(config, real, sizes, small.sizes, taken)
        _cut(config, real, length)
    _say(config, real, sizes, small, length, rows, taken.count)
    wrong = [each.text for each in said(settings()) if each.level in ("problem", "impossible")]
    if wrong:  # nothing can train, and verl would only say so after its start
        say("stop", wrong[0])
        raise SystemExit(1)


def _places(config: Any) -> None:
    """Take the user's own files where they are on this machine."""
    from omegaconf import OmegaConf

    for name in _FILES:
        given = OmegaConf.select(config, name, default=None)
        if given and (found := stand_in(name, str(given))) != given:
            OmegaConf.update(config, name, found)


def _check(real: Any) -> None:
    """Have verl's own check see the real sizes; `main` only sees the small ones. And look for settings that it does not read."""
    from verl.trainer.ppo.utils import need_reference_policy
    from verl.utils.config import validate_config

    _look_at_unread(real)
    checked = copy.deepcopy(real)
    try:
        validate_config(checked, use_reference_policy=need_reference_policy(checked), use_critic=_critic(checked))
    except Exception as error:  # noqa: BLE001 - of verl's own check
        if _of_an_import(error):  # of the real engine, which this machine may lack
            return
        say("settings", f"verl refuses them: {type(error).__name__}: {error}", level="problem")


def _of_an_import(error: Exception) -> bool:
    """Whether an exception came while a module was imported: verl's vLLM module raises ValueError without vLLM."""
    frames = traceback.walk_tb(error.__traceback__)
    return isinstance(error, ImportError) or any(frame.f_code.co_name == "<module>" for frame, _ in frames)


def _look_at_unread(real: Any) -> None:
    """Older settings of rewards, which verl's program takes and does not read."""
    from omegaconf import OmegaConf

    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if getattr(main, "name", None) != PROGRAM:
        return
    given = [name for section in SECTIONS for name in _set_below(real.get(section) or {}, section)]
    found = unread(given, lambda name: OmegaConf.select(real, name, default=None) is not None)
    if found:
        say("settings", f"no effect, because {PROGRAM} does not read them since 0.9: {worded(found)}", level="problem")


def _set_below(section: Any, name: str) -> Iterator[str]:
    for key, value in section.items():
        if hasattr(value, "items"):
            yield from _set_below(value, f"{name}.{key}")
        elif value is not None:
            yield f"{name}.{key}"


def _load_reward(real: Any) -> None:
    """Load the user's reward function once here: its workers would do so only after the start of Ray and of all others."""
    if (real.reward.get("custom_reward_function") or {}).get("path"):
        from verl.trainer.ppo.reward import get_custom_reward_fn

        with suppress(Exception):  # the hook on this function says what is wrong with it
            get_custom_reward_fn(real)


def _sizes(config: Any) -> Sizes:
    critic = _critic(config)
    return Sizes(
        prompts=int(config.data.train_batch_size),
        group=int(config.actor_rollout_ref.rollout.n),
        minibatch=int(config.actor_rollout_ref.actor.ppo_mini_batch_size),
        critic=int(config.critic.ppo_mini_batch_size) if critic else None,
        fetched=int(config.data.gen_batch_size) if config.data.get("gen_batch_size") else None,
        parts=int(config.trainer.v1.separate_async.parameter_sync_step) if is_separate(config) else 1,
    )


def _critic(config: Any) -> bool:
    from verl.trainer.ppo.utils import need_critic

    return bool(need_critic(config))


def _processes(config: Any) -> int:
    return int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes)


def _models(config: Any) -> Any:
    """Put tiny models in the place of the real ones; the tokenizer."""
    from transformers import AutoTokenizer

    sections = [config.actor_rollout_ref.model, *([config.critic.model] if _critic(config) else [])]
    for section in sections:
        section.path = place_of(
            str(Path(str(section.path)).expanduser()) if str(section.path).startswith("~") else str(section.path)
        )
        section.hf_config_path = None
        section.tokenizer_path = sections[0].path
        if section.get("lora_adapter_path"):
            say("left out", f"the adapter {section.lora_adapter_path}: a new one", level="replaced")
            section.lora_adapter_path = None
    return AutoTokenizer.from_pretrained(sections[0].path)


def _length(real: Any, small: Shrunk) -> _Length:
    """Several data epochs where the launch has them, with a checkpoint that is not at the end of one."""
    wanted = small.rollouts
    several = int(real.trainer.total_epochs) > 1 and wanted > 1
    if not several:
        return _Length(each=wanted, epochs=1, save=max(1, wanted // 2))
    each = max(1, wanted // 2)
    epochs = min(int(real.trainer.total_epochs), math.ceil(wanted / each))
    return _Length(each=each, epochs=epochs, save=each + each // 2 if each > 1 else 1)


def _rows(config: Any, real: Any, small: Shrunk, length: _Length, tokenizer: Any) -> tuple[int | None, Taken]:
    """Cut the rows; how many the launch has, and those that are taken."""
    sizes, prompts = small.sizes, int(real.data.train_batch_size)
    probe = take(config, "val", 4, tokenizer)
    counted = settings().rows or _count(real)
    remainder = counted % prompts if counted is not None else 0
    wanted = length.each * sizes.prompts
    if remainder:
        wanted += min(sizes.prompts - 1, max(1, remainder * sizes.prompts // prompts))
    if counted is not None and counted < prompts:
        say("rows", f"{counted} rows do not fill one rollout of {prompts} prompts", level="problem")
        wanted = max(1, sizes.prompts - 1)
    taken = take(config, "train", wanted, tokenizer)
    config.data.train_files, config.data.val_files = taken.files, probe.files
    config.data.train_max_samples = config.data.val_max_samples = -1
    return counted, msgspec.structs.replace(taken, longest=max(taken.longest, probe.longest))


def _count(real: Any) -> int | None:
    """Rows of the user's training files; None where they are not here."""
    from rlstep_hooks.systems.verl.rehearse.rows import count

    found = count(real)
    most = int(real.data.get("train_max_samples", -1) or -1)
    return min(found, most) if found is not None and most > 0 else found


def _settings(config: Any, real: Any, sizes: Sizes, small: Sizes, taken: Taken) -> None:
    """Sizes, lengths and the host's settings."""
    from omegaconf import OmegaConf

    def put(name: str, value: Any) -> None:
        if OmegaConf.select(config, name.rpartition(".")[0], default=None) is not None:
            OmegaConf.update(config, name, value, merge=False, force_add=True)

    for name, (value, text) in LEFT_OUT.items():
        if OmegaConf.select(real, name, default=None) not in (None, value):
            say("left out", text, level="replaced")
            put(name, value)
    variables = OmegaConf.select(real, "ray_kwargs.ray_init.runtime_env.env_vars", default=None)
    for name, value in (HOST | SEPARATE if is_separate(real) else HOST).items():
        put(name, value)
    if variables is not None:
        put("ray_kwargs.ray_init.runtime_env", {"env_vars": {key: str(value) for key, value in variables.items()}})
    model = real.actor_rollout_ref.model
    if not int(model.get("lora_rank", 0) or 0) and not int(model.get("lora", {}).get("rank", 0)):
        put("actor_rollout_ref.model.lora.merge", False)
    prompt = taken.longest + 8
    put("data.max_prompt_length", prompt)
    put("data.max_response_length", RESPONSE)
    put(f"{_ROLLOUT}.prompt_length", prompt)
    put(f"{_ROLLOUT}.response_length", RESPONSE)
    put("data.train_batch_size", small.prompts)
    put("data.gen_batch_size", small.fetched)
    put("data.val_batch_size", None)
    put(f"{_ROLLOUT}.n", small.group)
    put(f"{_ACTOR}.ppo_mini_batch_size", small.minibatch)
    if small.critic:
        put("critic.ppo_mini_batch_size", small.critic)
    for name, value in _microbatches(real, sizes, small, prompt + RESPONSE).items():
        put(name, value)
    buffer = OmegaConf.select(real, "reward.reward_kwargs.overlong_buffer_cfg", default=None)
    most = OmegaConf.select(real, "reward.reward_kwargs.max_resp_len", default=None)
    if buffer is not None and most:
        put("reward.reward_kwargs.overlong_buffer_cfg.len", max(1, int(buffer.len) * RESPONSE // int(most)))
        put("reward.reward_kwargs.max_resp_len", RESPONSE)


def _microbatches(real: Any, sizes: Sizes, small: Sizes, tokens: int) -> dict[str, Any]:
    """Give settings with as many micro-batches as the launch has where that comes out even, by samples or by tokens.

    Args:
        real: verl's live configuration.
        sizes: The real sizes.
        small: The small ones.
        tokens: Tokens of the longest sample here.
    """
    from omegaconf import OmegaConf

    processes = _processes(real)
    longest = int(real.data.max_prompt_length) + int(real.data.max_response_length)
    updates = (sizes.minibatch * sizes.group, small.minibatch * small.group)
    critic = ((sizes.critic or 0) * sizes.group, (small.critic or 0) * small.group)
    whole = (sizes.part, small.part)
    values: dict[str, Any] = {}
    for section, size, budget, (many, few) in (
        (_ACTOR, "ppo_micro_batch_size", "ppo_max_token_len_per_gpu", updates),
        ("critic", "ppo_micro_batch_size", "ppo_max_token_len_per_gpu", critic),
        ("critic", "forward_micro_batch_size", "forward_max_token_len_per_gpu", critic),
        (_ROLLOUT, "log_prob_micro_batch_size", "log_prob_max_token_len_per_gpu", whole),
        (_REFERENCE, "log_prob_micro_batch_size", "log_prob_max_token_len_per_gpu", whole),
    ):
        if not few:
            continue
        asked = OmegaConf.select(real, f"{section}.{budget}", default=None)
        if asked:
            # A sample is about half as long as it may be.
            cut = max(1, round(many / processes * longest / 2 / int(asked)))
            values[f"{section}.{budget}"] = max(tokens, math.ceil(few * tokens / min(cut, few)))
        for name, share in ((f"{section}.{size}_per_gpu", processes), (f"{section}.{size}", 1)):
            given = OmegaConf.select(real, name, default=None)
            if given:
                values[name] = pieces(few, many // share // int(given))
    return values


def _cut(config: Any, real: Any, length: _Length) -> None:
    """The length, checkpoints, evaluations and the warm-up."""
    trainer = config.trainer
    trainer.total_epochs = length.epochs
    if real.trainer.get("total_training_steps") is not None:
        trainer.total_training_steps = length.rollouts
    for name in ("save_freq", "test_freq"):
        if int(real.trainer.get(name, -1)) > 0:
            trainer[name] = length.save
    trainer.critic_warmup = min(int(real.trainer.get("critic_warmup", 0)), 2)
    part = "resumed" if settings().checkpoint else "first"
    folder = Path(settings().folder) / "output" / part
    trainer.default_local_dir = str(folder)
    for name in ("rollout_data_dir", "validation_data_dir"):
        if trainer.get(name):
            trainer[name] = str(folder / name)
    trainer.resume_mode = "resume_path" if settings().checkpoint else "disable"
    trainer.resume_from_path = settings().checkpoint or None
    for section in (config.actor_rollout_ref.actor.optim, config.critic.optim):
        warmup = int(section.get("lr_warmup_steps", -1) or -1)
        if warmup > 0:
            total = real.trainer.get("total_training_steps")
            section.lr_warmup_steps = min(
                math.ceil(warmup * length.rollouts / int(total or 10 * warmup)), length.rollouts - 1
            )


def _say(config: Any, real: Any, sizes: Sizes, small: Shrunk, length: _Length, rows: int | None, taken: int) -> None:
    from omegaconf import OmegaConf

    from rlstep_hooks.record.wire import to_json
    from rlstep_hooks.systems.verl.plan import plan_config

    schedule = None
    try:
        schedule = plan_config(OmegaConf.to_container(real, resolve=True), rows=rows)
        say("schedule", schedule=to_json(schedule).decode())
        planned = plan_config(OmegaConf.to_container(config, resolve=True), rows=taken)
        updates = planned.updates
    except PlanError as refusal:
        say("schedule", f"{refusal.message} ({refusal.when}); {refusal.fix}", level="problem")
        updates = None
    except (LookupError, SettingError) as error:
        raise CannotRehearseError(f"no schedule from the settings: {error}") from error
    completions_may_have(int(real.data.max_response_length))
    say(
        "sizes",
        factor=small.factor(sizes),
        processes=_processes(real),
        group=small.sizes.group,
        real_group=sizes.group,
        samples=small.sizes.samples,
        real_samples=sizes.samples,
        rows=taken,
        rollouts=length.rollouts,
        rollouts_per_epoch=length.each,
        updates=updates or 0,
        real_updates=schedule.updates if schedule is not None else None,
        limits=f"completions of {RESPONSE} tokens at most; float32; rollouts by transformers, "
        f"not by {real.actor_rollout_ref.rollout.name}",
        resumes=str(real.trainer.get("resume_mode", "auto")) != "disable",
    )
    look_at_rate(real, schedule)
