"""The page's pictures as SVG. Colours come from the page's style sheet; all text is escaped by the XML writer.

A picture that follows the width of the page holds no text, because text would be stretched with it; its numbers stand beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

import msgspec
from markupsafe import Markup

from rlstep_hooks.planning.words import number, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.judge.report import LagValues
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.show.page.model import Cell, Moment, Timeline

_HEIGHT = 24
_GAP = 3
_LETTER = 7.0
"""More than the width of a letter in the pictures."""
_SINGLY = 8
"""Largest number of micro-batches that a stretch shows one by one; more become one box."""
_DARKEST_LAG = 6
_SPOKEN = 16
"""Largest number of values that the description of a picture names."""
_PARTED = 120
"""Largest number of bars with gaps between them; with more bars, the gaps would flicker."""


def _picture(width: float, height: float, described: str, *, stretched: bool = False) -> ElementTree.Element:
    attributes = {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": printable(described)}
    if stretched:
        attributes |= {"preserveAspectRatio": "none", "class": "stretched"}
    else:
        attributes |= {"width": f"{width:g}", "height": f"{height:g}"}
    return ElementTree.Element("svg", attributes)


def _add(parent: ElementTree.Element, tag: str, text: str = "", **attributes: float | str) -> ElementTree.Element:
    named = {
        name.rstrip("_").replace("_", "-"): v if isinstance(v, str) else f"{v:g}" for name, v in attributes.items()
    }
    child = ElementTree.SubElement(parent, tag, named)
    child.text = printable(text)
    return child


def _markup(picture: ElementTree.Element) -> Markup:
    return Markup(ElementTree.tostring(picture, encoding="unicode"))


def planned_stretch(moments: Sequence[Moment]) -> Markup:
    """A stretch of a rollout as the plan has it, in outline: what comes with the rollout, or micro-batches and their update."""
    return _stretch([(moment, "planned") for moment in moments], "planned")


def observed_stretch(moments: Sequence[Moment], missing: Sequence[Moment]) -> Markup:
    """A stretch of a rollout as it was observed, and after it what is missing."""
    return _stretch(
        [*((moment, "observed") for moment in moments), *((moment, "missing") for moment in missing)], "observed"
    )


def _stretch(shown: Sequence[tuple[Moment, str]], whose: str) -> Markup:
    singly = sum(moment.times for moment, _ in shown if moment.kind == "microbatch") <= _SINGLY
    boxes = [(moment, how, *box) for moment, how in shown for box in _boxes(moment, singly=singly)]
    width = sum(box[-1] + _GAP for box in boxes) - _GAP + 2
    described = "; ".join(_described(moment, how) for moment, how in shown)
    picture = _picture(width, _HEIGHT + 2, f"{whose}: {described}")
    left = 1.0
    for moment, how, label, box_width in boxes:
        group = _add(picture, "g", class_=f"{how} {_classes(moment)}")
        _add(group, "title", _described(msgspec.structs.replace(moment, times=1), how))
        _add(group, "rect", x=left, y=1, width=box_width, height=_HEIGHT, rx=3)
        if label:
            _add(group, "text", label, x=left + box_width / 2, y=_HEIGHT / 2 + 5.5, text_anchor="middle")
        left += box_width + _GAP
    return _markup(picture)


def _described(moment: Moment, how: str) -> str:
    words = f"{moment.times} times {moment.words}" if moment.times > 1 else moment.words
    words += f" of {number(moment.samples, 'samples')}" if moment.samples is not None else ""
    words = f"missing: {words}" if how == "missing" else words
    return f"{words} (expected {moment.expected})" if moment.expected else words


def _boxes(moment: Moment, *, singly: bool) -> list[tuple[str, float]]:
    """Labels and widths of a moment's boxes."""
    if moment.kind == "update":
        return [("", 9.0)]
    if moment.kind == "microbatch" and (singly or moment.times == 1):
        return [(moment.label, max(_HEIGHT - 2.0, len(moment.label) * _LETTER + 10))] * moment.times
    label = f"{moment.label} x {moment.times}" if moment.times > 1 else moment.label
    return [(label, len(label) * _LETTER + 14)]


def _classes(moment: Moment) -> str:
    parts: list[str] = [moment.kind]
    parts += ["critic"] if moment.critic else []
    parts += ["skipped"] if moment.skipped else []
    parts += ["differs"] if moment.expected else []
    if moment.kind == "microbatch" and not moment.critic and moment.lag is not None:
        parts.append(f"lag{min(max(moment.lag, 0), _DARKEST_LAG)}")
    return " ".join(parts)


def most_updates(timeline: Timeline) -> float:
    """The height of the overview, in updates on one rollout."""
    planned = float(timeline.planned_updates) if timeline.planned_updates is not None else 0.0
    return max([planned, *(cell.updates for cell in timeline.cells)])


def pins(timeline: Timeline, findings: Sequence[Finding]) -> list[tuple[float, int]]:
    """The marks over the overview: percent from its left, and the index of the finding. A cell has one mark; errors come first."""
    placed: dict[int, int] = {}
    for position, finding in enumerate(findings):
        rollout = finding.where.rollout
        if finding.severity == "info" or rollout is None:
            continue
        index = next((i for i, cell in enumerate(timeline.cells) if cell.first <= rollout <= cell.last), None)
        if index is not None:
            placed.setdefault(index, position)
    return [
        (round((index + 0.5) / len(timeline.cells) * 100, 2), position) for index, position in sorted(placed.items())
    ]


def overview(timeline: Timeline) -> Markup:
    """All rollouts: a bar for each (or for several), as high as its updates, marked if something was not as planned."""
    cells = timeline.cells
    planned = float(timeline.planned_updates) if timeline.planned_updates is not None else 0.0
    top = max(most_updates(timeline), 1e-9)
    described = f"Updates on each of {timeline.rollouts} rollouts; {timeline.differing} are not as planned"
    described += f", {timeline.uncompared} were not compared with the plan" if timeline.uncompared else ""
    picture = _picture(len(cells), 100, described, stretched=True)
    gap = 0.14 if len(cells) <= _PARTED else 0.0
    for index, cell in enumerate(cells):
        height = max(cell.updates / top * 100, 1.5)
        kind = "differing" if cell.differing else "plain" if cell.uncompared else "matching"
        bar = _add(
            picture, "rect", x=index + gap / 2, y=100 - height, width=1 - gap, height=height, class_=f"bar {kind}"
        )
        _add(bar, "title", _cell_words(cell))
    if planned:
        y = 100 - planned / top * 100
        _add(picture, "line", x1=0, x2=len(cells), y1=y, y2=y, class_="plan")
    return _markup(picture)


def _cell_words(cell: Cell) -> str:
    which = f"rollout {cell.first}" if cell.first == cell.last else f"rollouts {cell.first} to {cell.last}"
    words = f"{which}: {cell.updates:.3g} updates" + (" each" if cell.first != cell.last else "")
    words += f", {cell.differing} not as planned" if cell.differing else ""
    return words + (f", {cell.uncompared} not compared" if cell.uncompared else "")


def versions(cells: Sequence[Cell]) -> Markup:
    """Version of the trainer's weights and of the sampler's, rollout by rollout."""
    lowest, highest = version_range(cells)
    span = max(highest - lowest, 1)
    described = "Weight version of the trainer and of the sampler over the rollouts"
    picture = _picture(len(cells), 100, f"{described}, from {lowest} to {highest}", stretched=True)
    for name, values in (
        ("trainer", [cell.policy_version for cell in cells]),
        ("sampler", [cell.sampler_version for cell in cells]),
    ):
        heights = [None if value is None else 97 - (value - lowest) / span * 94 for value in values]
        _add(picture, "path", d=_steps(heights), class_=name)
    return _markup(picture)


def behind(cells: Sequence[Cell]) -> Markup:
    """Updates that the sampler's weights were behind the trainer's, rollout by rollout."""
    most = most_behind(cells)
    described = f"Updates that the sampler was behind the trainer over the rollouts, at most {most}"
    picture = _picture(len(cells), 100, described, stretched=True)
    for index, cell in enumerate(cells):
        if cell.behind:
            height = cell.behind / most * 100
            bar = _add(picture, "rect", x=index, y=100 - height, width=1, height=height, class_="bar behind")
            _add(bar, "title", f"rollout {cell.first}: sampler {cell.behind} updates behind")
    return _markup(picture)


def sampler_seen(cells: Sequence[Cell]) -> bool:
    """Whether the sampler's version is known at any rollout."""
    return any(cell.sampler_version is not None for cell in cells)


def most_behind(cells: Sequence[Cell]) -> int:
    """Largest number of updates that the sampler was behind the trainer."""
    return max(cell.behind for cell in cells)


def version_range(cells: Sequence[Cell]) -> tuple[int, int]:
    """The lowest and the highest version that the chart of versions shows."""
    known = [v for cell in cells for v in (cell.policy_version, cell.sampler_version) if v is not None]
    return min(known), max(known)


def _steps(heights: Sequence[float | None]) -> str:
    """A line of steps, each one unit wide, with a gap wherever a height is not known."""
    parts = []
    for index, (before, y) in enumerate(zip([None, *heights], heights, strict=False)):
        if y is not None:
            parts.append(f"{'M' if before is None else 'L'}{index} {y:.3g}H{index + 1}")
    return "".join(parts)


def lags(values: Sequence[LagValues]) -> Markup:
    """A bar for the largest |log ratio| at each lag, and within it a bar for the mean."""
    largest = max(value.max_abs_log_ratio for value in values)
    words = "; ".join(f"lag {value.lag}: {value.max_abs_log_ratio:.2g}" for value in values[:_SPOKEN])
    picture = _picture(len(values), 100, f"Largest |log ratio| by lag: {words}", stretched=True)
    gap = 0.14 if len(values) <= _PARTED else 0.0
    for index, value in enumerate(values):
        shown = ((value.max_abs_log_ratio, "value"), (value.mean_abs_log_ratio, "inner"))
        for number_, kind in shown:
            height = number_ / largest * 100 if largest > 0 else 0.0
            one = _add(
                picture, "rect", x=index + gap / 2, y=100 - height, width=1 - gap, height=height, class_=f"bar {kind}"
            )
            _add(
                one, "title", f"lag {value.lag}: max {value.max_abs_log_ratio:.2g}, mean {value.mean_abs_log_ratio:.2g}"
            )
    return _markup(picture)


def beside_plan(planned: int, observed: int) -> Markup:
    """An observed number beside the planned one, as a bar."""
    picture = _picture(100, 10, f"{observed} of {planned} planned", stretched=True)
    scale = 100 / max(planned, observed)
    for length, kind in ((100 / scale, "track"), (observed, "over"), (min(planned, observed), "value")):
        _add(picture, "rect", x=0, y=0, width=length * scale, height=10, class_=kind)
    return _markup(picture)
