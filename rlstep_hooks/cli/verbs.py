"""What each verb of the command line runs. Each imports its module when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.cli.complain import complain

if TYPE_CHECKING:
    import argparse

    from rlstep_hooks.planning.launched import Options


def _options(given: argparse.Namespace) -> Options:
    from rlstep_hooks.cli.launches import options_of

    return options_of(
        framework=given.framework,
        version=given.version,
        rows=given.rows,
        world_size=given.world_size,
        line=given.line,
        assignments=given.assignments,
    )


def run_plan(given: argparse.Namespace) -> int:
    """`rlstep plan`; the exit status."""
    from rlstep_hooks.cli import launches, plan

    if given.json_schema:
        return plan.print_schema()
    if given.fix or given.write:
        from rlstep_hooks.cli import fix

        words = [*given.words, *given.command]
        return launches.run(lambda: fix.show(words, _options(given), as_json=given.json, write=given.write))
    if given.all_versions:
        from rlstep_hooks.cli import versions

        return launches.run(lambda: versions.show([*given.words, *given.command], _options(given), as_json=given.json))
    return launches.run(
        lambda: plan.show(
            [*given.words, *given.command],
            _options(given),
            as_json=given.json,
            as_markdown=given.markdown,
            explain=given.explain,
            steps=given.steps,
            strict=given.strict,
        )
    )


def run_run(given: argparse.Namespace) -> int:
    """`rlstep run`; the exit status."""
    from rlstep_hooks.cli import run

    if not given.command:
        complain("there is no command; write `rlstep run -- <launch command>`")
        return 2
    return run.run(
        given.command,
        lambda: _options(given),
        folder=given.dir,
        strict=given.strict,
        copy_to=given.copy_to,
        stalled_after=given.stalled_after,
    )


def run_ingest(given: argparse.Namespace) -> int:
    """`rlstep ingest`; the exit status."""
    from rlstep_hooks.cli import ingest, launches

    return launches.run(
        lambda: ingest.show(
            given.paths,
            given.command,
            _options(given),
            kind=given.format,
            estimator=given.estimator,
            rewards=ingest.weights_of(given.rewards or []),
            folder=given.dir,
            form=given.form,
            strict=given.strict,
            html=given.html,
        )
    )


def run_rehearse(given: argparse.Namespace) -> int:
    """`rlstep rehearse`; the exit status."""
    from rlstep_hooks.cli import launches
    from rlstep_hooks.cli.rehearse.parts import Asked
    from rlstep_hooks.cli.rehearse.show import show

    if not given.command:
        complain("there is no command; write `rlstep rehearse -- <launch command>`")
        return 2
    asked = Asked(
        budget=given.budget,
        rollouts=given.rollouts,
        resume=not given.no_resume,
        rows=given.rows,
        columns=tuple(filter(None, (given.columns or "").split(","))),
        online=given.online,
        cuda=given.device == "cuda",
        html=given.html,
    )
    return launches.run(
        lambda: show(
            given.command,
            _options(given),
            asked,
            confirm=given.confirm,
            as_json=given.json,
            strict=given.strict,
        )
    )


def run_report(given: argparse.Namespace) -> int:
    """`rlstep report`; the exit status."""
    from rlstep_hooks.cli import report
    from rlstep_hooks.record.ledger import is_url

    def show(folder: Path) -> int:
        return report.show(
            folder, run=given.run, form=given.form, strict=given.strict, trace=given.trace, html=given.html
        )

    if is_url(given.folder):
        from rlstep_hooks.record.remote import RemoteError, fetched

        if given.follow:
            complain("only a folder of this machine can be followed")
            return 2
        try:
            with fetched(given.folder, given.run) as folder:
                return show(folder)
        except RemoteError as error:
            complain(error)
            return 2
    if given.follow:
        from rlstep_hooks.cli.follow import follow

        follow(Path(given.folder), given.run)
    return show(Path(given.folder))


def run_why(given: argparse.Namespace) -> int:
    """`rlstep why`; the exit status."""
    from rlstep_hooks.cli import why

    return why.show(given.words, run=given.run, as_json=given.json)


def run_diff(given: argparse.Namespace) -> int:
    """`rlstep diff`; the exit status."""
    from rlstep_hooks.cli import diff, launches

    versions = (given.version_a, given.version_b)
    return launches.run(
        lambda: diff.show(given.sides, given.command, _options(given), versions=versions, as_json=given.json)
    )


def run_convert(given: argparse.Namespace) -> int:
    """`rlstep convert`; the exit status."""
    from rlstep_hooks.cli import convert, launches

    return launches.run(lambda: convert.show([*given.words, *given.command], given.to, _options(given)))


def run_check(given: argparse.Namespace) -> int:
    """`rlstep check`; the exit status."""
    from rlstep_hooks.cli import check, launches

    return launches.run(
        lambda: check.show(
            given.paths,
            _options(given),
            base=given.base,
            sarif_file=given.sarif,
            junit_file=given.junit,
            as_markdown=given.markdown,
            strict=given.strict,
        )
    )


def run_ci(given: argparse.Namespace) -> int:
    """`rlstep ci`; the exit status."""
    from rlstep_hooks.cli import ci

    return ci.show(
        given.folder,
        known=given.known,
        required=given.require,
        as_markdown=given.markdown,
        strict=given.strict,
    )


def run_recipes(given: argparse.Namespace) -> int:
    """`rlstep recipes`; the exit status."""
    from rlstep_hooks.cli import launches, recipes

    return launches.run(recipes.show)


def run_rules(given: argparse.Namespace) -> int:
    """`rlstep rules`; the exit status."""
    from rlstep_hooks.cli import rules

    return rules.show(given.code)


def run_doctor(given: argparse.Namespace) -> int:
    """`rlstep doctor`; the exit status."""
    from rlstep_hooks.cli import doctor, launches

    return launches.run(lambda: doctor.show(given.framework))


def run_mcp(given: argparse.Namespace) -> int:
    """`rlstep mcp`; the exit status."""
    from rlstep_hooks.cli import mcp

    return mcp.show(given.root.resolve())


def run_demo(given: argparse.Namespace) -> int:
    """`rlstep demo`; the exit status."""
    from rlstep_hooks.cli import demo

    return demo.show(given.fault, given.log_dir)
