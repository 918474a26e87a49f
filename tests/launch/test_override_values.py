"""Values of overrides, as Hydra's own parser reads them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.launch.arguments import override_value
from rlstep_hooks.launch.text import Place, SettingError
from tests.examples import MANY

overrides_parser = pytest.importorskip(
    "hydra.core.override_parser.overrides_parser", reason="hydra is compared with where it is"
)
PARSER = overrides_parser.OverridesParser.create()


def hydra(text: str) -> Any:
    """What Hydra makes of `k=TEXT`."""
    from hydra.core.override_parser.types import QuotedString

    def bare(value: Any) -> Any:
        if isinstance(value, QuotedString):
            return value.text
        if isinstance(value, list):
            return [bare(part) for part in value]
        if isinstance(value, dict):
            return {str(bare(key)): bare(part) for key, part in value.items()}
        return value

    return bare(PARSER.parse_override(f"k={text}").value())


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize(
    "text",
    ["1", "-3", "+4", "1_000", "01", "1.5", "1e-6", "1.e3", ".5", "1E6", "inf", "-inf", "nan", "true", "False", "TRUE", "null",
    "NULL", "",
     "abc", "a b", "a/b.c", "'quoted, text'", '"double"', "'it\\'s'", "[1,2,3]", "[a, b]", "['a','b']", "[]", "[[1],[2]]", "{a:1}",
     "{a:1,b:[x,y]}", "{}", "${a.b}", "${oc.env:HOME}", "pre_${x}_post",
     "a\\,b", "key:value", "1-2", "12abc", "0x10", "'5'",
     "s3://bucket/x", "grpo", "@file", "1_", "_1", "-", "+"],
)  # fmt: skip
def test_values_are_those_of_hydra(text: str) -> None:
    assert same(override_value(text), hydra(text))


SCALARS = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False).map(repr),
    st.sampled_from(["true", "null", "abc", "a_b-c", "x.y", "'q u'", '"d"', "${a.b}"]),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_./-]{0,12}", fullmatch=True),
)
NESTED = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4).map(lambda parts: "[" + ",".join(parts) + "]"), max_leaves=8
)


@given(NESTED)
@MANY
def test_random_values_are_those_of_hydra(text: str) -> None:
    assert same(override_value(text), hydra(text))


@given(st.text(st.sampled_from("ab1.,'\"[]{}: \\$()"), max_size=12))
@MANY
def test_any_value_is_read_as_hydra_does_or_refused(text: str) -> None:
    """Never another value than Hydra's: what this parser takes, Hydra takes too, with the same result, or refuses."""
    try:
        mine = override_value(text)
    except SettingError:
        return
    try:
        theirs = hydra(text)
    except Exception:  # noqa: BLE001 - Hydra refuses it; a launch with it would not start
        return
    if isinstance(theirs, str):
        theirs = theirs.strip()  # Hydra keeps a blank behind some signs; no setting of a plan depends on it
    if "$" not in text:
        assert same(mine, theirs)


@pytest.mark.parametrize("text", ["1,2", "a,b", "'open", "[1,2", "{a:1", "{a}", "'a'b", "[" * 200])
def test_values_that_no_launch_has(text: str) -> None:
    with pytest.raises(SettingError):
        override_value(text, Place("run.sh", 3, 1))


def test_a_bracket_that_nothing_opened_is_no_sweep() -> None:
    with pytest.raises(SettingError, match="closes what nothing opened"):
        override_value("qwen3_4b_grpo_8npu}")
    with pytest.raises(SettingError, match="means a sweep"):
        override_value("1,2")
