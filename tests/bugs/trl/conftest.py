"""Each bug is made in a process that remembers nothing of the trainers before it."""

import pytest

pytest.importorskip("trl")

from tests.systems.trl.conftest import nothing_left_behind

__all__ = ["nothing_left_behind"]
