"""The rows of a launch of verl in small: the first short ones of the user's files, or made ones where the files are not here."""

from __future__ import annotations

import ast
import zlib
from pathlib import Path
from typing import Any

import msgspec

from rlstep_hooks.rehearse.messages import CannotRehearseError, say, settings
from rlstep_hooks.rehearse.rows import made_rows

_LOOKED_AT = 2000
"""Rows of a file among which short ones are looked for."""
_SHORT = 200
"""Tokens of a prompt that costs little."""
_SOURCES = (
    ("gsm8k", "openai/gsm8k"),
    ("dapo", "math_dapo"),
    ("aime", "aime2024"),
    ("math", "DigitalLearningGmbH/MATH-lighteval"),
)
"""Part of a file's name -> the data source that its rows name, which verl has a rule for (utils/reward_score/__init__.py, 0.9.1)."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one set in small."""

    files: list[str]
    real: int | None
    """Rows that the user's files have; None where they are not here."""
    count: int
    """Rows that are taken."""
    longest: int
    """Tokens of the longest prompt."""


def take(config: Any, kind: str, count: int, tokenizer: Any) -> Taken:
    """Write so many rows into the temporary folder.

    Args:
        config: verl's live configuration.
        kind: "train" or "val".
        count: How many rows.
        tokenizer: Counts the tokens of prompts.
    """
    given = config.data[f"{kind}_files"]
    files = [str(each) for each in (given if hasattr(given, "append") else [given])]
    paths = [Path(each).expanduser() for each in files]
    here = [path for path in paths if path.is_file()]
    if here:
        real, rows = _read(here)
        missing = [str(path) for path in paths if path not in here]
        if missing:
            say("data", f"left out, because they are not on this machine: {', '.join(missing)}", level="replaced")
    else:
        real, rows = None, _made(config, files, kind)
    if not rows:
        raise CannotRehearseError(f"{files[0]} has no rows")
    key = config.data.get("prompt_key", "prompt")
    if key not in rows[0]:
        columns = ", ".join(sorted(rows[0]))
        say("rows", f"data.prompt_key={key}: {files[0]} has no such column, but {columns}", level="problem")
    lengths = [_tokens(row.get(key), tokenizer, config) for row in rows]
    limit = max(_SHORT, sorted(lengths)[min(count, len(lengths)) - 1])
    chosen = [index for index, tokens in enumerate(lengths) if tokens <= limit][:count]
    suffix = here[0].suffix if here else ".parquet"
    target = Path(settings().folder) / "data" / f"{kind}{suffix}"
    target.parent.mkdir(exist_ok=True)
    _write(target, [rows[index] for index in chosen])
    if kind == "train":
        say("set", rows=zlib.crc32(repr([rows[index] for index in chosen]).encode()))
    return Taken(
        files=[str(target)], real=real, count=len(chosen), longest=max((lengths[index] for index in chosen), default=1)
    )


def count(config: Any) -> int | None:
    """Rows of the user's training files that are here; None where none is."""
    given = config.data.train_files
    paths = [Path(str(each)).expanduser() for each in (given if hasattr(given, "append") else [given])]
    here = [path for path in paths if path.is_file()]
    return _read(here)[0] if here else None


def _read(files: list[Path]) -> tuple[int, list[dict[str, Any]]]:
    """How many rows the files have, and the first of each."""
    import pyarrow.parquet as parquet

    total = 0
    rows: list[dict[str, Any]] = []
    for path in files:
        if path.suffix == ".parquet":
            opened = parquet.ParquetFile(path)
            total += opened.metadata.num_rows
            batch = next(opened.iter_batches(batch_size=_LOOKED_AT), None)
            rows += batch.to_pylist() if batch is not None else []
        else:
            lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
            total += len(lines)
            rows += [msgspec.json.decode(line) for line in lines[:_LOOKED_AT]]
    return total, rows


def _write(target: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    if target.suffix == ".parquet":
        parquet.write_table(arrow.Table.from_pylist(rows), target)
    else:
        target.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def _tokens(prompt: Any, tokenizer: Any, config: Any) -> int:
    """Tokens of a prompt; many where it cannot be counted, so that others are taken first."""
    if not isinstance(prompt, list):
        return len(str(prompt))
    try:
        text = tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=False, **(config.data.get("apply_chat_template_kwargs") or {})
        )
    except Exception:  # noqa: BLE001 - verl's own reading of the row says what is wrong with it
        return 10 * _SHORT
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def _made(config: Any, files: list[str], kind: str) -> list[dict[str, Any]]:
    """Rows with the columns that verl's data set, its rewards and its tools read (utils/dataset/rl_dataset.py, 0.9.1)."""
    name = " ".join(files).lower()
    source = next((source for part, source in _SOURCES if part in name), "openai/gsm8k")
    data = config.data
    key, source_key = data.get("prompt_key", "prompt"), data.get("reward_fn_key", "data_source")
    extra = [*_read_of_extra_info(config), *settings().columns]
    rows = []
    for index, row in enumerate(made_rows(["question", "answer", *extra], 256)):
        made: dict[str, Any] = {
            source_key: source,
            key: [{"role": "user", "content": row["question"]}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": row["answer"]},
            "extra_info": {
                "split": kind,
                "index": index,
                "need_tools_kwargs": True,
                "tools_kwargs": {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": row["answer"]}}},
                "interaction_kwargs": {"name": "gsm8k", "query": row["question"], "ground_truth": row["answer"]},
                **row,
            },
        }
        rows.append(made)
    if kind == "train":
        columns = list(rows[0])
        listed = ", ".join(columns)
        say(
            "data",
            f"{files[0]} is not on this machine: rows made with the columns {listed}",
            level="replaced",
            columns=columns,
        )
    return rows


def _read_of_extra_info(config: Any) -> list[str]:
    """The keys that the user's reward function reads of `extra_info`."""
    path = (config.reward.get("custom_reward_function") or {}).get("path")
    if not path or not Path(path).expanduser().is_file():
        return []
    try:
        tree = ast.parse(Path(path).expanduser().read_text(encoding="utf-8"))
    except SyntaxError:
        return []
    keys: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "extra_info":
            key = node.slice
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and node.args
        ):
            key = node.args[0] if isinstance(node.func.value, ast.Name) and node.func.value.id == "extra_info" else node
        else:
            continue
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            keys[key.value] = None
    return [key for key in keys if key not in ("split", "index", "num_turns", "rollout_reward_scores")]
