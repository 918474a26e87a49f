"""What the sessions of nox install of our own dependencies is said in one place, and leaves none out."""

from __future__ import annotations

import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).parents[2]


def pinned() -> dict[str, Requirement]:
    lines = (CHECKOUT / "tests" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    return {canonicalize_name(one.name): one for one in found}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_each_dependency_and_what_it_needs_itself_has_one_release() -> None:
    import tomllib

    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    left, needed = [Requirement(each) for each in project["dependencies"]], set()
    while left:
        one = left.pop()
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        if canonicalize_name(one.name) not in needed:
            needed.add(canonicalize_name(one.name))
            left += map(Requirement, distribution(one.name).requires or ())
    assert set(pinned()) == needed
    assert all(str(one.specifier).startswith("==") for one in pinned().values())
