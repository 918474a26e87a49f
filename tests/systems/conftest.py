"""Which tests must stay in one worker, because they share a launch."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one launch together, and else those of a file, so that `--dist loadgroup` makes no launch twice.

    A test takes part in a launch if a parameter `launch` or `deployment`, or a mark of its own, names it. The hook comes before that of
    xdist, which reads the groups once, and ignores without a word what is named later.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            call = getattr(item, "callspec", None)
            launch = (call.params.get("launch") or call.params.get("deployment") or "") if call else ""
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}/{item.path.stem} {launch}".rstrip()))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to go on if xdist ignored the groups: each worker would make each launch, and the tests would pass all the same."""
    if session.config.getoption("loadgroup", False):
        alone = [item.nodeid for item in session.items if "@" not in item.nodeid]
        assert not alone, f"{len(alone)} tests are in no group of `--dist loadgroup`, the first of them {alone[0]}"
