"""`rlstep check`: many launch files at once, for CI and commit hooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.show.junit import fails, junit
from rlstep_hooks.systems.engine.checking import changed_since, check, may_be_launches, with_folders_opened
from rlstep_hooks.systems.engine.path_options import path_options

if TYPE_CHECKING:
    from rlstep_hooks.planning.launched import Options


def show(
    paths: list[str],
    options: Options,
    *,
    base: str | None,
    sarif_file: Path | None,
    junit_file: Path | None,
    as_markdown: bool,
    strict: bool,
) -> int:
    """Plan each file that is a launch; print a table, and write what CI reads.

    Args:
        paths: Files and folders; with a base, the files that differ from it if none is named.
        options: What completes each launch.
        base: A revision of git that each plan is compared with.
        sarif_file: Where to write the findings as SARIF.
        junit_file: Where to write JUnit XML.
        as_markdown: Whether to print Markdown.
        strict: Whether warnings fail too.

    Returns:
        1 if a launch has an error (with `strict`, a warning too), else 0.

    Raises:
        LaunchError: Nothing is named, a path does not exist, the base is no revision, or a table of options cannot be read.
        OSError: A file cannot be written.
    """
    if not paths and base is None:
        raise LaunchError("there is no file; write `rlstep check PATH...` or `rlstep check --base REVISION`")
    missing = [path for path in paths if not Path(path).exists()]
    if missing:
        raise LaunchError(f"{', '.join(missing)}: no such file or folder")
    changed, before = changed_since(base, Path()) if base is not None else ([], None)
    of_paths = path_options(Path())
    found = check(
        with_folders_opened(paths) or may_be_launches(changed), lambda path: of_paths.over(path, options), before=before
    )
    launches = [one for one in found if one.is_launch]
    if sarif_file is not None:
        from rlstep_hooks.record.wire import to_json
        from rlstep_hooks.show.sarif import sarif

        sarif_file.write_bytes(to_json(sarif(launches), indent=2) + b"\n")
    if junit_file is not None:
        junit_file.write_text(junit(launches, strict=strict) + "\n", encoding="utf-8")
    if as_markdown:
        from rlstep_hooks.show.checked import markdown

        print(markdown(launches))
    elif launches:
        from rlstep_hooks.show.checked import text
        from rlstep_hooks.show.terminal import Terminal

        console = Terminal(highlight=False)
        console.print(text(launches, console.width))
    else:
        print(f"none of {len(found)} files is a launch that is known")
    return int(any(fails(each.finding.severity, strict=strict) for one in launches for each in one.findings))
