"""Whatever stands in an export, the answer is a report or an error that names the place."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.ingest.export import Asked, ExportError, Header, Sample
from tests.ingest.runs import HEADER, ingested, samples
from tests.ingest.test_formats import PLAN, as_nemo_rl, as_prime_rl, as_verl

NUMBERS = (
    st.integers()
    | st.floats()
    | st.sampled_from([2**63, -(2**63) - 1, 2**64, 10**400, float("nan"), float("inf"), -0.0, 1e308, -1e308, True])
)
SCALARS = st.none() | NUMBERS | st.text(max_size=8)
VALUES: Any = st.recursive(
    SCALARS, lambda of: st.lists(of, max_size=4) | st.dictionaries(st.text(max_size=3), of, max_size=2), max_leaves=8
)
LISTS = st.lists(st.floats() | st.none() | st.integers(-3, 3), max_size=6)

WRITERS = {"verl": as_verl, "prime_rl": as_prime_rl, "nemo_rl": as_nemo_rl}


def answered(folder: Path, asked: Asked | None = None) -> None:
    """Ask for a report, which either comes or is refused in words."""
    refused = ""
    try:
        report = ingested(folder, asked=asked)
    except ExportError as error:
        refused = str(error)
    if refused:
        assert str(folder) in refused
        return
    assert report.verdict in ("PASS", "FAIL", "NOT_EVALUATED")
    assert "the judge failed" not in str(report.not_evaluated)
    json.loads(report.to_json())


@given(
    lines=st.lists(
        st.dictionaries(st.sampled_from(Sample.__struct_fields__), VALUES | LISTS, max_size=6), min_size=1, max_size=4
    ),
    header=st.dictionaries(st.sampled_from(Header.__struct_fields__), VALUES, max_size=4),
)
def test_any_values_in_the_interchange_schema(lines: list[Any], header: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "export"
        folder.mkdir()
        rows = [HEADER | header, *({"rollout": 0, **line} for line in lines)]
        (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8", "surrogatepass")
        answered(folder)


@given(data=st.data(), kind=st.sampled_from(sorted(WRITERS)), value=VALUES | LISTS)
def test_any_value_in_a_line_of_a_format(data: st.DataObject, kind: str, value: Any) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "export"
        WRITERS[kind](folder, samples(0, rollouts=2))
        path = data.draw(st.sampled_from(sorted(folder.rglob("*.jsonl"))))
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        row = data.draw(st.sampled_from(rows))
        row[data.draw(st.sampled_from(sorted(row)))] = value
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8", "surrogatepass")
        answered(folder, Asked(schedule=PLAN, estimator="nemo_grpo"))


@given(content=st.binary(max_size=200), suffix=st.sampled_from([".jsonl", ".json", ".parquet"]))
def test_any_bytes(content: bytes, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "export"
        folder.mkdir()
        (folder / f"1{suffix}").write_bytes(content)
        answered(folder)
