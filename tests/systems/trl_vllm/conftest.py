"""One vLLM server for all runs that use one, as a user keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.systems.trl_vllm.server import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server. It is not started before a test asks for it."""
    from tests.systems.trl_vllm.server import Server

    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    started.stop()
