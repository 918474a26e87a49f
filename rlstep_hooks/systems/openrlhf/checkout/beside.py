"""What the source of OpenRLHF beside a launch says: how long the run is, which flags it has, and what they are by default."""

from __future__ import annotations

import ast
import os.path
import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import Checkout, Line, Source, find_checkout, nearest, none_known, repository_of
from rlstep_hooks.launch.files import find_file
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import Place, UnknownText
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.declaration import Beside
from rlstep_hooks.systems.openrlhf.checkout.asynchronous import read_async
from rlstep_hooks.systems.openrlhf.checkout.dataset import read_dataset
from rlstep_hooks.systems.openrlhf.checkout.loop import read_fit, read_passes
from rlstep_hooks.systems.openrlhf.settings import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.checkout import Function
    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.systems.engine.declaration import System

_MARKER = "openrlhf/trainer/ppo_trainer.py"
_PROGRAM = "cli/train_ppo_ray.py"
_PROGRAMS = ("openrlhf.cli.train_ppo_ray", "train_ppo_ray.py")
_WITHOUT_RAY = "openrlhf.cli.train_ppo"
"""The program of releases up to 0.5 whose processes have all roles: each draws its prompts, as those of the policy do with Ray."""
_REMEDY = "--version plans it as that release of OpenRLHF"
_DRAWN = (
    "args.rollout_batch_size // strategy.world_size",
    "args.rollout_batch_size // (strategy.world_size // strategy.ring_attn_size)",
)
"""Prompts that each process draws for a rollout (trainer/ray/ppo_actor.py prepare_datasets 0.5.0 to 0.6.4)."""
_REPEATED = re.compile(r"\[\w+\] \* (?:(?:self\.)?args\.)?n_samples_per_prompt")
_FILTERS = re.compile(r"^[^#\n\"']*\b\w*filter\w*\(", re.MULTILINE | re.IGNORECASE)
_SHARE = r"// self\.micro_train_batch_size // self\.world_size"
_ACCUMULATES = re.compile(
    rf"self\.accumulated_gradient = \( self\.train_batch_size \* self\.ring_attn_size(?: \* self\.ds_tensor_parallel_size)? {_SHARE} \)"
    rf"|self\.accumulated_gradient = \( self\.train_batch_size {_SHARE} \* self\.ring_attn_size \)"
    rf"|self\.accumulated_gradient = self\.train_batch_size {_SHARE}"
)


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the trainer of the checkout says; None where there is none.

    Args:
        system: OpenRLHF.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: The trainer has lines that may change the length or the sizes, and that are not known.
    """
    if command.program.name.endswith("train_ppo.py"):
        return _of_the_file(system, command, folder)
    is_local = command.program.name == _WITHOUT_RAY
    if not (is_local or command.program.name.endswith(_PROGRAMS)):
        return None
    checkout = nearest(folder, find_checkout(_MARKER, [folder]), "OpenRLHF", _REMEDY)
    program = checkout.source("cli/train_ppo.py" if is_local else _PROGRAM) if checkout is not None else None
    found = _fit(checkout) if checkout is not None else None
    if checkout is None or program is None or found is None:
        return _of_the_file(system, command, folder)
    source, fit = found
    flags = _flags(program)
    each_draws = any(argument.arg == "prompts_dataloader" for argument in fit.args.args)
    values = {
        **{name: flag.value for name, flag in flags.items() if not flag.unknown},
        **{name: _plain(each) for name, each in given.items() if not each.unknown},
    }
    if any(values.get(name) is True for name in ("async_train", "train.async_enable")):
        _ask(checkout, [*read_async(checkout, values), *read_dataset(checkout, source, values)])
        return None
    unknown = [
        *_own_estimator(system, program, given),
        *read_fit(fit, source, values),
        *_passes(checkout, source, values, each_draws=each_draws, is_local=is_local),
    ]
    if is_local:
        unknown += _drawn(checkout, program, "train", values)
    elif each_draws:
        unknown += _drawn(checkout, checkout.source("trainer/ray/ppo_actor.py"), "prepare_datasets", values)
    else:
        unknown += read_dataset(checkout, source, values)
    first, end = ("0.5", "0.6" if is_local else "0.7.1") if each_draws else _between(checkout, source, fit)
    if not first:
        unknown.append(Line("the loader of prompts is another one", source.at(fit.lineno)))
    _ask(checkout, unknown)
    note = Note(
        "assumes",
        f"the trainer beside the launch was read: num_episodes passes over the prompts, each rollout is trained once "
        f"({source.at(fit.lineno)})",
    )
    return Beside(system, first, end, notes=(note,), settings=flags)


def _ask(checkout: Checkout, unknown: list[Line]) -> None:
    """Ask where a line is not known.

    Raises:
        LaunchError: One is not.
    """
    if unknown:
        package = os.path.relpath(checkout.package, checkout.root)
        raise none_known(f"the trainer of {package}", unknown, _REMEDY)


def _of_the_file(system: System, command: Command, folder: Path) -> Beside | None:
    """The flags of a program of its own, `examples/train_ppo.py` of releases before 0.3 or a copy: its loop is not read."""
    path = find_file(command.program.name, folder, command.folder) if command.program.kind == "script" else None
    if path is None:
        return None
    program = Checkout(path.parent, repository_of(path.parent) or path.parent.resolve()).source(path.name)
    flags = _flags(program) if program is not None else {}
    return Beside(system, settings=flags) if flags else None


def _fit(checkout: Checkout) -> tuple[Source, Function] | None:
    """The loop over the prompts, with its file: that of the common trainer, from 0.6.3 to 0.7.0 that of the policy's."""
    for name, of in (("trainer/ppo_trainer.py", ""), ("trainer/ray/ppo_actor.py", "ActorPPOTrainer")):
        source = checkout.source(name)
        fits = source.methods("fit", of=of) if source is not None else []
        if source is not None and fits:
            return source, fits[-1]  # a base class comes first
    return None


_LOADS = re.compile(r"prompts_dataloader = (?:self\.)?strategy\.setup_dataloader\(\s*\w+,\s*([\w.]+),")


def _between(checkout: Checkout, source: Source, fit: Function) -> tuple[str, str]:
    """The first release with such a loader of one controller, and the first later one without; empty where there is none."""
    loads = _LOADS.search(source.text)
    size = loads[1] if loads is not None else ""
    generator = checkout.source("trainer/ppo_utils/samples_generator.py")
    if size != "1":
        found = {"args.rollout_batch_size": ("0.7.1", "0.8.1"), "args.vllm_generate_batch_size": ("0.8.1", "0.9.1")}
        return found.get(size, ("", ""))
    if generator is None:
        return "0.9.1", "0.9.9"
    if "_sample_buffer" not in generator.text:
        return "0.9.9", "0.10"
    # 0.11 trains what is left once the rows are used up; before, the loop ends there.
    return ("0.11", "0.12") if "if not rollout_samples:" in ast.unparse(fit) else ("0.10", "0.11")


def _passes(
    checkout: Checkout, source: Source, values: Mapping[str, object], *, each_draws: bool, is_local: bool
) -> list[Line]:
    """What is not known of the passes over a rollout: up to 0.6.2 in the trainer that all roles share, later in that of the policy."""
    actor = checkout.source("trainer/ray/ppo_actor.py")
    of = source if each_draws else actor
    trains = (of.methods("ppo_train_actor") or of.methods("ppo_train")) if of is not None else []
    if of is None or actor is None or not trains:
        return [Line("the passes over a rollout were not found", source.shown)]
    unknown = read_passes(trains[0], of, values)
    called = f"{'self' if trains[0].name == 'ppo_train_actor' else 'super()'}.{trains[0].name}("
    calls, called = (source, f"self.{trains[0].name}(") if is_local else (actor, called)
    if each_draws and calls.text.count(called) != 1:
        unknown.append(Line("the policy is not trained once on a rollout", calls.shown))
    strategy = checkout.source("utils/deepspeed/deepspeed.py")
    if strategy is not None and not _ACCUMULATES.search(re.sub(r"\s+", " ", strategy.text)):
        unknown.append(Line("gradients accumulate in another way", strategy.shown))
    return unknown


def _drawn(checkout: Checkout, file: Source | None, within: str, values: Mapping[str, object]) -> list[Line]:
    """What is not known of the prompts that a process draws for itself, and of the samples that it makes of them.

    Args:
        checkout: The package.
        file: The file that makes the loader of prompts; None where it is not here.
        within: The function that does.
        values: The settings of the launch, where they are known.
    """
    maker = checkout.source("trainer/ppo_utils/experience_maker.py")
    loads = file.methods(within) if file is not None else []
    if file is None or not loads:
        return [Line("where the prompts are loaded was not found", str(checkout.package))]
    unknown = read_dataset(checkout, file, values, within)
    made = [
        node.value
        for node in ast.walk(loads[0])
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).removeprefix("self.") == "prompts_dataloader"
    ]
    for call in made:
        words = {word.arg: word.value for word in call.keywords} if isinstance(call, ast.Call) else {}
        given = call.args[1] if isinstance(call, ast.Call) and len(call.args) > 1 else words.get("batch_size")
        drops = words.get("drop_last")
        if given is None or ast.unparse(given) not in _DRAWN or (drops is not None and ast.unparse(drops) != "True"):
            unknown.append(Line(f"the loader of prompts is {ast.unparse(call)[:80]}", file.at(call.lineno)))
    if len(made) != 1:
        unknown.append(Line(f"the loader of prompts is made in {len(made)} places", file.at(loads[0].lineno)))
    if maker is None or not _REPEATED.search(maker.text):
        unknown.append(
            Line("nothing repeats a prompt n_samples_per_prompt times", maker.shown if maker else file.shown)
        )
    elif filters := _FILTERS.search(maker.text):
        unknown.append(Line(f"{filters[0].strip()}...) may leave samples out", maker.at(_line(maker, filters.end()))))
    return unknown


def _line(source: Source, at: int) -> int:
    return source.text.count("\n", 0, at) + 1


_FLAG = re.compile(r"add_argument\(\s*(?:[\"']-\w[\"'],\s*)?f?[\"']--([\w.{}-]+)[\"'](.*?)\)\s*\n", re.DOTALL)


def _flags(program: Source) -> dict[str, Setting]:
    """The flags of the program, with their defaults; empty where some of them are added elsewhere."""
    if re.search(r"\w\(parser\b|parents=|parse_known_args", program.text):
        return {}
    found: dict[str, Setting] = {}
    for flag in _FLAG.finditer(program.text):
        place = Place(program.shown, _line(program, flag.start()), 1)
        default = re.search(r"default=([^,\n]+)", flag[2])
        value: object = False if default is None and "store_true" in flag[2] else None
        unknown: tuple[UnknownText, ...] = ()
        try:
            value = _literal(default[1].strip()) if default is not None else value
        except (ValueError, SyntaxError):
            unknown = (UnknownText("", f"its default is {default[1].strip() if default else ''}", place),)
        names = _spelled_out(flag[1], program)
        if not names:
            return {}
        found |= {name: Setting(name, value, place, f"--{name}", unknown) for name in names}
    return found


def _spelled_out(flag: str, program: Source) -> list[str]:
    """The names of a flag, of which a part may go over a list: `f"--{prefix}.optim"`; empty where that is not found."""
    part = re.search(r"\{(\w+)\}", flag)
    if part is None:
        return [flag.replace("-", "_")]
    over = re.search(rf"for {part[1]} in [(\[]([^)\]]*)[)\]]:", program.text)
    values = re.findall(r"[\"'](\w+)[\"']", over[1]) if over is not None else []
    return [flag.replace(part[0], value).replace("-", "_") for value in values]


def _own_estimator(system: System, program: Source, given: Mapping[str, Setting]) -> list[Line]:
    """The algorithm, where the program has it and no release does."""
    spellings = ("algo.advantage.estimator", *system.settings["algo.advantage.estimator"].also)
    asked = next((str(given[name].value) for name in spellings if name in given), "")
    if not asked or asked in ALGORITHMS or not re.search(rf"choices=[^)]*[\"']{re.escape(asked)}[\"']", program.text):
        return []
    return [Line(f"{asked} is an algorithm of its own", program.shown)]


def _literal(text: str) -> object:
    """The value of a default: a literal, or `int(1e8)`.

    Raises:
        ValueError, SyntaxError: It is another expression.
    """
    whole = re.fullmatch(r"int\(([\d.e+_]+)\)?", text)
    return int(float(whole[1])) if whole else ast.literal_eval(text)


def _plain(setting: Setting) -> object:
    return {"true": True, "false": False}.get(str(setting.value).lower(), setting.value)
