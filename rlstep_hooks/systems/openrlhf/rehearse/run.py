"""What a run of OpenRLHF in small shows besides its record: the rows of each rollout, and that it came to its end."""

from __future__ import annotations

import zlib
from typing import Any

import wrapt

from rlstep_hooks.rehearse.messages import said, say, say_once, settings
from rlstep_hooks.rehearse.rewards import sum_up
from rlstep_hooks.systems.openrlhf.rehearse.cpu import find_stubs
from rlstep_hooks.systems.openrlhf.releases import installed_release

FIRST = "0.11"
"""The first release whose launches are rehearsed."""


def begin(module: Any) -> None:
    """`openrlhf`: a release that is built otherwise would run in its real sizes.

    Raises:
        SystemExit: It is such a release.
    """
    release = installed_release()
    if release is None or not release.supported or not release.since(FIRST):
        text = f"OpenRLHF {release.openrlhf if release else 'of this environment'} is not rehearsed; {FIRST} is, and newer ones"
        say("program", text, level="impossible")
        raise SystemExit(text)
    find_stubs(module)


def watch_rows(module: Any) -> None:
    """`openrlhf.trainer.ppo_utils.samples_generator`: which rows a rollout draws, to compare the resumed run with the first."""

    def around(wrapped: Any, generator: Any, args: Any, kwargs: Any) -> Any:
        say_once("training", "")
        found = wrapped(*args, **kwargs)
        prompts = {prompt for sample in found[0] for prompt in sample.prompts}
        if prompts:
            # Not `hash`: that of a text differs between processes.
            say("drawn", rows=sorted(zlib.crc32(prompt.encode()) for prompt in prompts))
        return found

    wrapt.wrap_function_wrapper(module.SamplesGenerator, "generate_samples", around)


def watch_start(module: Any) -> None:
    """`openrlhf.trainer.ray.launcher`: the driver saves the model when training has ended (cli/train_ppo_ray.py `train`)."""

    def around(wrapped: Any, group: Any, args: Any, kwargs: Any) -> Any:
        found = wrapped(*args, **kwargs)
        _trained()
        return found

    wrapt.wrap_function_wrapper(module.RayActorGroup, "async_save_model", around)


def _trained() -> None:
    lines = said(settings())
    if any(each.topic == "trained" for each in lines):  # the critic is saved in the same way
        return
    values = {each.topic: each.values for each in lines}
    sum_up()
    evaluations = sum(each.topic == "evaluated" for each in lines)
    say("trained", updates=values["sizes"]["updates"], evaluations=evaluations, **values["end"])
