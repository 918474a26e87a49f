"""Tiny runs of the cookbook's own loop against the server of these tests, in this process."""

from __future__ import annotations

import asyncio
import logging
import os
import string
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.systems.engine import index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

STOP = "\n\nUser:"


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of single characters, with one token for what ends a turn in the renderer "role_colon"."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    characters = ["<eos>", *string.digits, *string.ascii_letters, *" \n:?.,+-=*/<>_'\"()"]
    words = {text: number for number, text in enumerate(characters)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    fast.add_tokens([STOP])
    fast.save_pretrained(folder / "tiny" / "model")


@contextmanager
def served(folder: Path, fault: str = "") -> Iterator[str]:
    """The address of a new server.

    Args:
        folder: Has the tokenizer.
        fault: What the server does wrong, one of `server.FAULTS`; empty for nothing.
    """
    from tests.systems.tinker.server import Handler, Server, Service

    handler = type("Own", (Handler,), {"service": Service(folder, fault)})
    server = Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def config(address: str, log: Path, *, groups: int = 4, group: int = 4, builder: Any = None, **others: Any) -> Any:
    """Three steps of the recipe's arithmetic; other settings of `others` replace these."""
    from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDatasetBuilder
    from tinker_cookbook.rl.train import Config

    own = ArithmeticDatasetBuilder(
        batch_size=groups,
        model_name_for_tokenizer="tiny/model",
        renderer_name="role_colon",
        n_batches=100,
        group_size=group,
    )
    settings: dict[str, Any] = {
        "learning_rate": 1e-2,
        "max_tokens": 5,
        "max_steps": 3,
        "eval_every": 0,
        "save_every": 0,
        "num_groups_to_log": 0,
    }
    return Config(
        dataset_builder=builder or own,
        model_name="tiny/model",
        renderer_name="role_colon",
        recipe_name="tests",
        base_url=address,
        log_path=str(log),
        **(settings | others),
    )


def trained(folder: Path, place: Path, fault: str = "", *, audited: bool = True, **settings: Any) -> Report | None:
    """Train, and report.

    Args:
        folder: Has the tokenizer; the working directory.
        place: A new folder for the record and the cookbook's log.
        fault: What the server does wrong.
        audited: Whether there is an audit; there is no report else.
        settings: Of `config`.
    """
    with served(folder, fault) as address:
        return trained_at(address, place, audited=audited, **settings)


def trained_at(address: str, place: Path, *, audited: bool = True, **settings: Any) -> Report | None:
    """The same against a server that is there."""
    from tinker_cookbook.rl import train

    logging.getLogger("tinker_cookbook").setLevel(logging.ERROR)
    made = config(address, place / "log", **settings)
    record = place / "record"
    os.environ.pop("RLSTEP_DIR", None)
    if audited:
        os.environ["RLSTEP_DIR"] = str(record)
    try:
        asyncio.run(train.main(made))
    finally:
        os.environ.pop("RLSTEP_DIR", None)
    return report_of(record, None, deviations_of=index.deviations_of) if audited else None
