"""The drafts for other projects with this project's address: `python -m tests.contributions.ready FOLDER` writes them.

Refuses as long as the address is not known.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rlstep_hooks.version import PLACEHOLDER, REPOSITORY

DRAFTS = Path(__file__).parents[2] / "contributions"


def drafts() -> dict[Path, str]:
    """Each file of the drafts with its text, by its path below `contributions`."""
    found = sorted(path for path in DRAFTS.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(DRAFTS): path.read_text(encoding="utf-8") for path in found}


def addressed(text: str, repository: str) -> str:
    """A text with the address in the place of what stands for it.

    Args:
        text: The text.
        repository: The repository, as "owner/name".
    """
    owner = PLACEHOLDER.partition("/")[0]
    return text.replace(PLACEHOLDER, repository).replace(
        f"github.com/{owner}`", f"github.com/{repository.partition('/')[0]}`"
    )


def write(folder: Path, repository: str) -> None:
    """Write all drafts to a folder.

    Raises:
        ValueError: The address is not known.
    """
    if not repository:
        raise ValueError("the repository's address is not known: set REPOSITORY in rlstep_hooks/version.py")
    for path, text in drafts().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(addressed(text, repository), encoding="utf-8")


if __name__ == "__main__":
    try:
        write(Path(sys.argv[1]), REPOSITORY)
    except ValueError as problem:
        sys.exit(str(problem))
