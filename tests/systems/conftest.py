"""Which tests must stay in one worker, because they share a launch."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one launch together, and else those of a file, so that `--dist loadgroup` makes no launch twice.

    A test takes part in a launch if a parameter `launch` or a mark of its own names it.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            call = getattr(item, "callspec", None)
            launch = call.params.get("launch", "") if call else ""
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}/{item.path.stem} {launch}".rstrip()))
