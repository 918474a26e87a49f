"""verl's agent loops: sessions with a client that stands for the engines, and the modules that make their rows.

No trainer and no Ray: what is mutated makes rows of turns, and only that is looked at. The training of a mutant is its rows.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.turn_records import TurnRecords
from rlstep_hooks.systems.verl.observe import agent_turns
from tests.cpu.verl_cpu.assets import tiny_tokenizer
from tests.mutants.run import Run, Target
from tests.systems.verl.audited import ROOT
from tests.systems.verl.launch import ALWAYS_CALLS

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.record.events import TurnsJoined
    from tests.mutants.training import Training

MODULES = (
    "verl.experimental.agent_loop.agent_loop", "verl.experimental.agent_loop.tool_agent_loop",
    "verl.experimental.agent_loop.single_turn_agent_loop", "verl.utils.tokenizer.continuous_token",
)  # fmt: skip
TOOL = ROOT / "tests" / "systems" / "verl" / "digits_tool.py"
SESSIONS = 6
RUN = "run"
ROLLOUT = "actor_rollout_ref.rollout"
SETTINGS: dict[str, tuple[str, ...]] = {
    "tools": (f"{ROLLOUT}.response_length=400", f"{ROLLOUT}.multi_turn.max_assistant_turns=4"),
    "cut": (f"{ROLLOUT}.response_length=70", f"{ROLLOUT}.calculate_log_probs=False"),
    "one turn": (f"{ROLLOUT}.response_length=20",),
}
LOOPS = {"tools": "tool_agent", "cut": "tool_agent", "one turn": "single_turn_agent"}


def _config(name: str) -> Any:
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", [f"{ROLLOUT}.multi_turn.format={ALWAYS_CALLS}", *SETTINGS[name]])


def _worker(config: Any, rows: list[Any]) -> Any:
    """A process of agent loops, without what it needs for training."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker, load_all_tools
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.replica import TokenOutput

    class Client(LLMServerClient):  # type: ignore[misc]  # verl is not typed
        """Draws turns of any length; some do not end with the end token."""

        def __init__(self) -> None:
            self.draws = random.Random(7)

        async def generate(self, request_id: Any, *, prompt_ids: Any, sampling_params: Any, **more: Any) -> Any:
            count = self.draws.randrange(1, 30)
            tokens = [self.draws.randrange(3, 250) for _ in range(count)] + ([2] if count % 3 else [])
            drawn = [-self.draws.random() * 5 for _ in tokens]
            return TokenOutput(token_ids=tokens, log_probs=drawn if sampling_params["logprobs"] else None)

    class Worker(AgentLoopWorker):  # type: ignore[misc]  # verl is not typed
        def __init__(self) -> None:
            self.config, self.rollout_config = config, config.actor_rollout_ref.rollout
            self.llm_client, self.tokenizer, self.processor = Client(), tiny_tokenizer(), None
            self.hf_model_type, self.dataset_cls, self.reward_loop_worker_handles = "qwen2", RLHFDataset, None
            self.tools = load_all_tools(tool_config_path=None, function_tool_path=str(TOOL))

        async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> None:
            """As `AgentLoopWorkerTQ`'s up to the queue (v1/agent_loop_tq.py:150)."""
            outputs = output if isinstance(output, list) else [output]
            await self._compute_score(outputs, kwargs=kwargs)
            rows.extend(outputs)

    return Worker()


def _add_parser() -> None:
    from verl.experimental.agent_loop import tool_parser

    class CallsTwice(tool_parser.ToolParser):  # type: ignore[misc]  # verl is not typed
        """Finds two calls in most turns, whatever they say."""

        async def extract_tool_calls(self, responses_ids: Any, tools: Any = None) -> Any:
            call = tool_parser.FunctionCall(name="digits", arguments='{"number": 3}')
            return self.tokenizer.decode(responses_ids), [call, call] if sum(responses_ids) % 5 else []

    tool_parser.ToolParser.register(ALWAYS_CALLS)(CallsTwice)


class TurnsAudit:
    """The hooks of the processes where agent loops run, and what a controller would read of them."""

    def __init__(self) -> None:
        self.patches = Patches()
        self.found: TurnsJoined | None = None

    def place(self, worker: Any) -> None:
        """Put the hooks on the classes of a worker and of its client; there is no Ray that names the run."""
        vars(agent_turns)["run_of_ray"] = lambda: RUN
        agent_turns.place_hooks(self.patches, type(worker))
        agent_turns.place_client_hook(self.patches, type(worker.llm_client))

    @property
    def report(self) -> Any:
        """What rules would say of it."""
        found = self.found
        assert found is not None
        wrong = {
            "RLS306": found.tokens_moved and found.tokens_like,
            "RLS518": found.masks_wrong and found.masks_like,
            "RLS305": found.log_probs_moved and found.log_probs_like,
        }
        findings = [
            _Text(code=code, severity="error", title=str(like), text=str(like)) for code, like in wrong.items() if like
        ]
        unseen = {"RLS518": found.left_out_why} if found.left_out else {}
        verdict = "FAIL" if findings else "NOT_EVALUATED" if unseen else "PASS"
        return SimpleNamespace(verdict=verdict, findings=findings, not_evaluated=unseen)


class _Text(SimpleNamespace):
    """A finding."""

    def __str__(self) -> str:
        return str(self.text)


def _sessions(name: str, folder: Path, audits: list[Any], training: Training) -> None:
    from rlstep_hooks.systems.verl.observe.environment import FOLDER

    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Any] = []
    config = _config(name)
    _add_parser()
    worker = _worker(config, rows)
    # Not before verl is imported, or the package attaches by itself too.
    os.environ[FOLDER] = str(folder)
    for audit in audits:
        audit.place(worker)

    async def run() -> None:
        for number in range(SESSIONS):
            await worker._run_agent_loop(
                {"logprobs": config.actor_rollout_ref.rollout.calculate_log_probs, "temperature": 1.0},
                {"step": 1, "sample_index": number, "rollout_n": 0, "validate": False},
                agent_name=LOOPS[name],
                trace=False,
                session_id=number,
                uid="prompt",
                raw_prompt=[{"role": "user", "content": f"{number}+4="}],
                extra_info={},
            )

    asyncio.run(run())
    for audit in audits:
        audit.found = TurnRecords(folder, RUN).take([f"prompt_{number}" for number in range(SESSIONS)], 0)
    for row in rows:
        parts = (row.prompt_ids, row.response_ids, row.response_mask, row.response_logprobs)
        training.steps.append(hashlib.sha256(repr(parts).encode()).hexdigest()[:16])


TARGETS = {
    "verl-turns": Target(
        modules=MODULES,
        runs=tuple(Run(name, functools.partial(_sessions, name), TurnsAudit) for name in SETTINGS),
    )
}
