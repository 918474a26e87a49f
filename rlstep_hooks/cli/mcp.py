"""`rlstep mcp`: the answers as tools of the Model Context Protocol, over standard input and output."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlstep_hooks.cli.complain import complain
from rlstep_hooks.launch.files import confined
from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.mcpserver import MCPServer

    from rlstep_hooks.cli.answers import Answer, LaunchGiven

_INSTRUCTIONS = """\
Exact answers about RL post-training launches and recorded runs (TRL, verl, OpenRLHF and some fifty systems). Nothing is executed,
but by rehearse. plan says what a launch means; fix what mends it; diff compares two; rehearse runs a launch of TRL, verl or OpenRLHF
in small, with a tiny model; report, findings and why judge a recorded run; rule explains a code. Say the `answer` sentence; the
numbers behind it are in `details`. What cannot be known is said, never guessed."""


def show(root: Path) -> int:
    """Serve until the client closes.

    Args:
        root: The folder that paths must lie in.

    Returns:
        The exit status: 2 if the SDK is not installed.
    """
    try:
        import mcp.server.mcpserver  # noqa: F401
    except ImportError:
        complain("the MCP SDK is not here; pip install 'rlstep-hooks[mcp]'")
        return 2
    server_of(root).run()
    return 0


def server_of(root: Path) -> MCPServer:
    """The server with all its tools."""
    from mcp.server.mcpserver import MCPServer

    from rlstep_hooks.cli import answers
    from rlstep_hooks.version import __version__

    os.chdir(root)
    server: MCPServer = MCPServer("rlstep", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")

    def answer(made: Callable[[], Answer]) -> dict[str, Any]:
        return _answered(made, root)

    def given(
        launch: str,
        rows: int | None,
        world_size: int | None,
        framework: str | None,
        version: str | None,
        variables: list[str] | None,
    ) -> LaunchGiven:
        return answers.LaunchGiven(
            launch=launch,
            rows=rows,
            world_size=world_size,
            framework=framework,
            version=version,
            set=tuple(variables or ()),
        )

    def plan(
        launch: str,
        rows: int | None = None,
        world_size: int | None = None,
        framework: str | None = None,
        version: str | None = None,
        variables: list[str] | None = None,
    ) -> dict[str, Any]:
        """The schedule that a launch command or file means: rollouts, updates, lags, dropped rows, refusals. Nothing is executed.

        Args:
            launch: A launch command as one text, or the path of a script, YAML, TOML or Python file.
            rows: Rows of the training set, where its file is not here.
            world_size: Data-parallel processes, where the launch does not say.
            framework: The framework, where the launch does not show it (for example "trl").
            version: The framework's release; the newest that was read if left out.
            variables: NAME=VALUE for variables that a script takes from elsewhere.
        """
        return answer(lambda: answers.plan(given(launch, rows, world_size, framework, version, variables)))

    def fix(
        launch: str,
        rows: int | None = None,
        world_size: int | None = None,
        framework: str | None = None,
        version: str | None = None,
        variables: list[str] | None = None,
    ) -> dict[str, Any]:
        """The smallest changes that mend each finding of a launch, each planned again. Nothing is written. Arguments as for plan."""
        return answer(lambda: answers.fix(given(launch, rows, world_size, framework, version, variables)))

    def diff(
        a: str,
        b: str | None = None,
        version_a: str | None = None,
        version_b: str | None = None,
        rows: int | None = None,
        world_size: int | None = None,
    ) -> dict[str, Any]:
        """Which quantities differ between two launches, or between two releases for one launch, and the settings that cause it.

        Args:
            a: A launch command or file.
            b: Another launch command or file; `a` if left out (give version_a and version_b then).
            version_a: The framework's release for a.
            version_b: The framework's release for b.
            rows: Rows of the training set.
            world_size: Data-parallel processes.
        """

        def made() -> Answer:
            one = given(a, rows, world_size, None, version_a, None)
            return answers.diff(one, given(b or a, rows, world_size, None, version_b, None))

        return answer(made)

    def convert(launch: str, to: str, rows: int | None = None, world_size: int | None = None) -> dict[str, Any]:
        """A launch in the settings of another framework, and what that framework cannot express.

        Args:
            launch: A launch command or file.
            to: The other framework, for example "verl", "trl" or "openrlhf".
            rows: Rows of the training set.
            world_size: Data-parallel processes.
        """
        return answer(lambda: answers.convert(given(launch, rows, world_size, None, None, None), to))

    def rehearse(
        launch: str,
        rows: int | None = None,
        world_size: int | None = None,
        budget: float = 120.0,
        resume: bool = True,
    ) -> dict[str, Any]:
        """Run a launch of TRL, verl or OpenRLHF in small on this machine, with a tiny random model, and say what that proves.

        It executes the user's own script and reward functions, for a minute or two. Nothing of the user's files is written to.

        Args:
            launch: A launch command as one text; its script must be below the root.
            rows: Rows of the real training set, where its file is not here.
            world_size: Data-parallel processes, where the launch does not say.
            budget: Seconds that it may take, 10 to 600; sizes shrink to fit.
            resume: Whether to resume from a checkpoint too.
        """

        def made() -> Answer:
            if not 10 <= budget <= 600:
                raise LaunchError(f"a budget of {budget:g} seconds is not between 10 and 600")
            for word in shlex.split(launch):
                if (root / word).exists():
                    _below(word, root)
            one = given(launch, rows, world_size, None, None, None)
            return answers.rehearse(one, budget=budget, resume=resume)

        return answer(made)

    def report(folder: str, run: str | None = None) -> dict[str, Any]:
        """The verdict on a recorded run, with its counts and findings.

        Args:
            folder: The folder of its records.
            run: Name of the run; the latest if left out.
        """
        return answer(lambda: answers.report(_below(folder, root), run))

    def findings(
        folder: str, run: str | None = None, severity: Literal["error", "warning", "info"] | None = None
    ) -> dict[str, Any]:
        """The findings of a recorded run, the worst first. Arguments as for report; severity leaves out all others."""
        return answer(lambda: answers.findings(_below(folder, root), run, severity))

    def why(folder: str = "rlstep", symptom: str | None = None, run: str | None = None) -> dict[str, Any]:
        """The conclusion about what was noticed in a recorded run: the faults that are excluded, what was measured, and what is left
        to change, the likeliest first.

        Args:
            folder: The folder of its records, or a trainer's output folder with them below it.
            symptom: ratio-one, loss-zero, kl-zero, kl-explodes, fewer-steps, reward-flat, entropy-falls, rate-zero, resume-worse,
                evaluation-odd, samples-lost or weights-odd; those that the record shows if left out.
            run: Name of the run; the latest if left out.
        """
        return answer(lambda: answers.causes(_below(folder, root), run, symptom))

    def follow(folder: str, run: str | None = None) -> dict[str, Any]:
        """How far a run is that goes on, and what is wrong so far. Arguments as for report."""
        return answer(lambda: answers.follow(_below(folder, root), run))

    def rule(code: str) -> dict[str, Any]:
        """What a rule checks, why it matters, what to do, its limits and sources.

        Args:
            code: The rule's code, for example RLS302.
        """
        return answer(lambda: answers.rule(code))

    for tool in (plan, fix, diff, convert, rehearse, report, findings, why, follow, rule):
        server.add_tool(tool)
    return server


def _answered(made: Callable[[], Answer], root: Path) -> dict[str, Any]:
    """An answer as JSON data; what cannot be answered as the client's error, in the words that a user of the command line gets."""
    from mcp.server.mcpserver.exceptions import ToolError

    from rlstep_hooks.record.wire import to_json

    try:
        with confined(root):
            found: dict[str, Any] = msgspec.json.decode(to_json(made()))
    except (LaunchError, OSError) as error:
        raise ToolError(str(error)) from None
    return found


def _below(name: str, root: Path) -> Path:
    """A path below the root.

    Raises:
        LaunchError: It lies outside.
    """
    path = Path(os.path.realpath(root / name))
    if not path.is_relative_to(os.path.realpath(root)):
        raise LaunchError(f"{name} lies outside of {root}")
    return path
