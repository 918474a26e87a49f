"""Whether agent loops ask the engines for the sampling that is configured, and for prompts that are, where the loops run.

verl asks with temperature, `top_p` and `top_k` of `actor_rollout_ref.rollout`, in a validation with those of its `val_kwargs`, and
with nothing else that changes a distribution (experimental/agent_loop/agent_loop.py 0.9.1:590-607, trainer/ppo/v1/agent_loop_tq.py
0.9.1:63-76). With `data.filter_overlong_prompts`
it leaves out rows whose prompt has more tokens than `data.max_prompt_length` (utils/dataset/rl_dataset.py 0.9.1:197). What is asked for
otherwise goes to a file that the controller reads.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.lines_beside import Files, NewLines
from rlstep_hooks.observe.processes import run_of_ray
from rlstep_hooks.record.events import ConfigChanged
from rlstep_hooks.systems.verl.launch import SHIPPED_AGENT_LOOPS
from rlstep_hooks.systems.verl.observe.process import folder

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.observe.sync_watch import EventRecorder

_FILES = Files("asked", "sampling")
_NAMES = ("temperature", "top_p", "top_k")
_IN_TRAINING = "actor_rollout_ref.rollout.*"
_IN_EVALUATIONS = "actor_rollout_ref.rollout.val_kwargs.*, in evaluations"
_GREEDY = {"temperature": 0, "top_p": 1.0, "top_k": -1}
"""What is asked for in training where a row wants the most probable tokens (`__do_sample__`, agent_loop.py 0.9.1:598, 647)."""


_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_p": 0.0}
"""What leaves a distribution as it is; no setting of verl's asks for anything else."""


class _Asked(msgspec.Struct, frozen=True):
    """A setting that was asked for otherwise than it is configured."""

    name: str
    configured: float | str
    asked: float | str
    greedy: bool = False
    """Whether the request asks for the most probable tokens, which a row of the training may want; a session does not see it."""


class _Configured(msgspec.Struct, frozen=True):
    """How a session should sample."""

    label: str
    """The full name of a setting, with a "*" for the name that a request has for it."""
    values: dict[str, float]
    """By the names that a request has for them."""
    penalty: float = 1.0
    """Of repeated tokens; verl's own loops ask for none, and leave this to the engine."""
    validates: bool = False
    """Whether the session is one of a validation, in which no row wants anything of its own (agent_loop.py 0.9.1:647)."""


_configured: ContextVar[_Configured | None] = ContextVar("rlstep_sampling", default=None)
"""How the session of this task should sample; None where that is not known."""

_told: set[str] = set()
"""Settings of which this process has written, those of greedy requests apart."""


def session_begins(worker: Any, loop: str, *, validates: bool) -> None:
    """A session begins in this task.

    Args:
        worker: verl's, which runs it.
        loop: Name of the agent loop.
        validates: Whether it is one of a validation.
    """
    own = worker.config.actor_rollout_ref.rollout
    label, values = (_IN_EVALUATIONS, own.val_kwargs) if validates else (_IN_TRAINING, own)
    known = loop in SHIPPED_AGENT_LOOPS
    penalty = float(own.get("repetition_penalty", None) or 1.0)
    by_name = {name: float(values[name]) for name in _NAMES}
    _configured.set(_Configured(label, by_name, penalty, validates) if known else None)


def asks(sampling: dict[str, Any]) -> None:
    """The session asks an engine for tokens.

    Raises:
        OSError: What was found cannot be written.
    """
    configured = _configured.get()
    if configured is None:
        return
    for of_request, value in _NEUTRAL.items():
        if of_request == "repetition_penalty" and sampling.get(of_request) == configured.penalty:
            continue
        _compare(sampling, of_request, value, f"{of_request} of requests to the engines")
    greedy = not configured.validates and all(sampling.get(name) == value for name, value in _GREEDY.items())
    for of_request, value in configured.values.items():
        _compare(sampling, of_request, value, configured.label.replace("*", of_request), greedy=greedy)


def _compare(sampling: dict[str, Any], of_request: str, value: float, name: str, *, greedy: bool = False) -> None:
    """Write down once that a request asks for something else than this value; apart where a row may want it so."""
    asked, key = sampling.get(of_request), f"{name}, greedy" if greedy else name
    if asked is not None and float(asked) != value and key not in _told:
        _told.add(key)
        _FILES.write(folder(), run_of_ray(), _Asked(name, value, float(asked), greedy))


def prompts_with(data: Any, tokens: int) -> None:
    """A row of the training is asked about whose whole prompt has so many tokens.

    Args:
        data: The configuration of the data.
        tokens: Of the prompt, before the engine's part of it is cut out.

    Raises:
        OSError: What was found cannot be written.
    """
    name, longest = "data.filter_overlong_prompts", int(data.max_prompt_length)
    own = (data.get("custom_cls") or {}).get("path") is not None
    if own or not data.get("filter_overlong_prompts", True) or tokens <= longest or name in _told:
        return
    _told.add(name)
    longer = f"a prompt of {tokens} tokens was generated for"
    _FILES.write(folder(), run_of_ray(), _Asked(name, f"True, with at most {longest} tokens", longer))


class AskedSampling:
    """Reads what the processes where agent loops run have written, in the controller.

    Args:
        of: The folder of the record.
        run: The run.
    """

    def __init__(self, of: Path, run: str) -> None:
        self._lines = NewLines(_FILES, of, run)
        self._told: set[str] = set()

    def tell(self, recorder: EventRecorder, *, greedy_rows: bool) -> None:
        """Record each setting once.

        Args:
            recorder: What records it.
            greedy_rows: Whether rows of the training may want the most probable tokens, for whose sake requests ask for them.
        """
        for line in self._lines:
            found = msgspec.json.decode(line, type=_Asked)
            if found.name not in self._told and not (found.greedy and greedy_rows):
                self._told.add(found.name)
                recorder.emit(
                    ConfigChanged(
                        at=recorder.now(),
                        name=found.name,
                        before=found.configured,
                        after=found.asked,
                        since="configuration",
                    )
                )
