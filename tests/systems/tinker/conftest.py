"""The client and the cookbook with this package's hooks; without them there are no tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch
import wrapt

from rlstep_hooks.systems.tinker.system import SYSTEM
from tests.systems.tinker.tiny import write_tokenizer

for module, hook in SYSTEM.on_import.items():
    wrapt.register_post_import_hook(hook, module)

pytest.importorskip("tinker")
pytest.importorskip("tinker_cookbook.rl.train")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working directory of all runs, with the tokenizer; a key that no service knows; no telemetry."""
    folder = tmp_path_factory.mktemp("tinker")
    write_tokenizer(folder)
    before = os.getcwd()
    os.chdir(folder)
    os.environ |= {"TINKER_API_KEY": "tml-of-a-test", "TINKER_TELEMETRY": "0", "HF_HUB_OFFLINE": "1"}
    yield folder
    os.chdir(before)
