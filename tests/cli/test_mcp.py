"""`rlstep mcp` as an agent sees it: through the SDK's own client, in memory and over a child's standard input and output."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("mcp", reason="the session installs it")

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from rlstep_hooks.cli.mcp import server_of
from rlstep_hooks.record.events import Update
from rlstep_hooks.record.ledger import FolderLedger, rank_process
from tests.scripted import make_plan, scripted_run

if TYPE_CHECKING:
    from pathlib import Path

VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=1024 actor_rollout_ref.rollout.n=8 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 trainer.n_gpus_per_node=8"
)
GRPO = "accelerate launch --num_processes 4 -m trl.scripts.grpo --num_generations 6 --per_device_train_batch_size 8"
TOOLS = {"plan", "fix", "diff", "convert", "rehearse", "report", "findings", "why", "follow", "rule"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(root: Path, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured answer of one tool; raises AssertionError with the words of an error."""

    async def asked() -> Any:
        async with Client(server_of(root)) as client:
            return await client.call_tool(tool, arguments)

    result = asyncio.run(asked())
    assert not result.is_error, result.content[0].text
    answer: dict[str, Any] = result.structured_content
    return answer


def error(root: Path, tool: str, **arguments: Any) -> str:
    with pytest.raises(AssertionError) as raised:
        call(root, tool, **arguments)
    return str(raised.value)


def test_each_tool_says_what_it_does_and_what_it_takes(root: Path) -> None:
    async def listed() -> Any:
        async with Client(server_of(root)) as client:
            return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in asyncio.run(listed())}
    assert tools.keys() == TOOLS
    assert all(tool.description and tool.input_schema["properties"] for tool in tools.values())


def test_a_plan_begins_with_a_sentence(root: Path) -> None:
    answer = call(root, "plan", launch=VERL, rows=8532)
    assert "1 024 prompts x 8 samples, 4 updates on each, lag 0 1 2 3" in answer["answer"]
    assert answer["details"]["accepted"]
    assert answer["sources"]
    assert answer["next_step"] == ""


def test_a_refused_launch_is_mended(root: Path) -> None:
    assert "refused" in call(root, "plan", launch=GRPO, rows=96)["answer"]
    fixed = call(root, "fix", launch=GRPO, rows=96)
    assert {"num_generations": 8} in [offer["changes"] for offer in fixed["details"]["offers"]]


def test_a_rehearsal_is_run_and_says_why_it_could_not_prove(root: Path) -> None:
    refused = call(root, "rehearse", launch=GRPO, rows=96)
    assert refused["answer"].startswith("wrong: refused: ")
    (root / "train.py").write_text("import a_package_that_is_not_here\n")
    missing = call(root, "rehearse", launch="python train.py", resume=False)
    assert missing["answer"].startswith("could not be rehearsed: ")
    assert "a_package_that_is_not_here" in " ".join(missing["details"]["output"])
    assert "memory" in missing["details"]["never_proved_in_small"]
    one_step_off = VERL.replace("verl.trainer.main_ppo", "verl.experimental.one_step_off_policy.main_ppo")
    assert "cannot be rehearsed" in error(root, "rehearse", launch=one_step_off)


def test_a_rehearsal_is_confined_and_its_budget_bounded(root: Path) -> None:
    outside = root.parent / "outside.py"
    outside.write_text("")
    assert "lies outside" in error(root, "rehearse", launch=f"python {outside}")
    assert "between 10 and 600" in error(root, "rehearse", launch="python train.py", budget=5000)


def test_releases_and_frameworks_are_compared(root: Path) -> None:
    assert "same schedule" in call(root, "diff", a=VERL, b=VERL, rows=8192)["answer"]
    differs = call(root, "diff", a=VERL, b=VERL.replace("size=256", "size=512"), rows=8192)
    assert differs["details"]["updates_per_rollout"]["a"] == 4
    assert "openrlhf" in call(root, "convert", launch=VERL, to="openrlhf", rows=8192)["answer"]


def recorded(root: Path, *, broken: bool) -> str:
    events = scripted_run(make_plan(iterations=2, max_steps=8))
    kept = [each for each in events if not (broken and isinstance(each, Update) and each.index == 4)]
    ledger = FolderLedger(root / "log", "run", rank_process(0))
    ledger.write(*kept)
    ledger.close()
    return "log"


def test_a_recorded_run_is_judged(root: Path) -> None:
    folder = recorded(root, broken=True)
    assert call(root, "report", folder=folder)["answer"].startswith("FAIL")
    found = call(root, "findings", folder=folder, severity="error")
    code = found["details"]["findings"][0]["code"]
    assert found["next_step"] == f"rule {code}"
    assert code in call(root, "rule", code=code)["answer"]
    assert "updates are missing" in call(root, "why", folder=folder, symptom="fewer-steps")["answer"]
    (symptom, *_) = call(root, "why", folder=folder)["details"]["symptoms"]
    assert symptom["conclusion"].startswith("a fault was found")
    assert "over" in call(root, "follow", folder=folder)["answer"]


def test_why_needs_neither_folder_nor_symptom(root: Path) -> None:
    (root / "log").rename(root / "rlstep") if recorded(root, broken=False) else None
    assert call(root, "why")["answer"] == "no symptom shows in this record"
    found = call(root, "why", symptom="kl-zero")
    assert "by design" in found["answer"]
    assert found["details"]["measured"]["KL to reference"].startswith("not computed")
    assert found["details"]["symptoms"][0]["left"][0]["change"] == "set beta above 0 if you want one"


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("report", {"folder": "../elsewhere"}, "outside"),
        ("report", {"folder": "nothing"}, "record"),
        ("why", {"folder": "log", "symptom": "gremlins"}, "ratio-one"),
        ("rule", {"code": "RLS000"}, "RLS102"),
        ("plan", {"launch": "echo hello"}, "none of these starts a known trainer"),
        ("plan", {"launch": VERL, "rows": 0}, "at least 1"),
        ("convert", {"launch": VERL, "to": "nothing"}, "nothing"),
    ],
)
def test_what_cannot_be_answered_says_why(root: Path, tool: str, arguments: dict[str, Any], words: str) -> None:
    assert words in error(root, tool, **arguments)


def test_files_outside_of_the_root_are_not_read(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    secret = outside / "c.yaml"
    secret.write_text("num_generations: 8\nper_device_train_batch_size: 8\n")
    (root / "link.yaml").symlink_to(secret)
    for path in (secret, root / "link.yaml"):
        assert "outside" in error(root, "plan", launch=str(path), framework="trl", world_size=1)
    rows = outside / "rows.jsonl"
    rows.write_text("{}\n" * 3977)
    launch = VERL + f" data.train_files={rows}"
    details = call(root, "plan", launch=launch)["details"]
    assert "not known" in str(details["table"])
    assert "3977" not in str(details).replace(" ", "")


def test_it_serves_over_standard_input_and_output(root: Path) -> None:
    async def asked() -> Any:
        server = StdioServerParameters(command=sys.executable, args=["-m", "rlstep_hooks", "mcp", "--root", str(root)])
        async with Client(stdio_client(server)) as client:
            return await client.call_tool("plan", {"launch": VERL, "rows": 8532})

    result = asyncio.run(asyncio.wait_for(asked(), 60))
    assert "4 updates on each" in result.structured_content["answer"]
