"""The page's pictures as SVG. Colours come from the page's style sheet; all text is escaped by the XML writer.

A picture that follows the width of the page holds no text, because text would be stretched with it; its numbers stand beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from markupsafe import Markup

from rlstep_hooks.render.words import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.render.page.model import Cell, Moment, Timeline
    from rlstep_hooks.report import Finding

_HEIGHT = 24
_GAP = 3
_LETTER = 7.0
"""Width of a letter in the pictures, generously."""
_SINGLY = 8
"""Micro-batches that a stretch shows one by one; more become one box."""
_DARKEST_LAG = 6


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


def stretch(moments: Sequence[Moment], *, planned: bool) -> Markup:
    """A stretch of a rollout: what came with it, or micro-batches and the update that they fed.

    Args:
        moments: What it shows, in order.
        planned: Whether it is the plan, drawn in outline.
    """
    boxes = list(_boxes(moments, count=sum(m.times for m in moments if m.kind == "microbatch")))
    width = sum(box_width for _, _, box_width in boxes) + _GAP * (len(boxes) - 1) + 2
    words = [f"{moment.times} times {moment.words}" if moment.times > 1 else moment.words for moment in moments]
    words = [
        f"{text} (expected {moment.expected})" if moment.expected else text
        for text, moment in zip(words, moments, strict=True)
    ]
    picture = _picture(width, _HEIGHT + 2, f"{'planned' if planned else 'observed'}: {'; '.join(words)}")
    picture.set("class", "planned" if planned else "observed")
    left = 1.0
    for moment, label, box_width in boxes:
        group = _add(picture, "g", class_=_classes(moment))
        _add(group, "title", f"{moment.words}; expected {moment.expected}" if moment.expected else moment.words)
        _add(group, "rect", x=left, y=1, width=box_width, height=_HEIGHT, rx=3)
        if label:
            _add(group, "text", label, x=left + box_width / 2, y=_HEIGHT / 2 + 5.5, text_anchor="middle")
        left += box_width + _GAP
    return _markup(picture)


def _boxes(moments: Sequence[Moment], *, count: int) -> list[tuple[Moment, str, float]]:
    boxes = []
    for moment in moments:
        if moment.kind == "update":
            boxes.append((moment, "", 9.0))
        elif moment.kind == "microbatch" and (count <= _SINGLY or moment.times == 1):
            width = max(float(_HEIGHT - 2), len(moment.label) * _LETTER + 10)
            boxes += [(moment, moment.label, width)] * moment.times
        else:
            label = f"{moment.label} x {moment.times}" if moment.times > 1 else moment.label
            boxes.append((moment, label, len(label) * _LETTER + 14))
    return boxes


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
    """Where findings stand over the overview: percent from its left, and which finding; one for each cell, errors first."""
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
    """All rollouts: a bar each (or one for several), as high as it has updates, marked where it is not as planned."""
    cells = timeline.cells
    planned = float(timeline.planned_updates) if timeline.planned_updates is not None else 0.0
    top = max(most_updates(timeline), 1e-9)
    differing = timeline.differing
    described = f"Updates on each of {cells[-1].last - cells[0].first + 1} rollouts; "
    described += f"{differing} are not as planned" if timeline.compared else "not compared with a plan"
    picture = _picture(len(cells), 100, described, stretched=True)
    gap = 0.14 if len(cells) <= 120 else 0.0
    for index, cell in enumerate(cells):
        height = max(cell.updates / top * 100, 1.5)
        kind = "plain" if not timeline.compared else "differing" if cell.differing else "matching"
        bar = _add(
            picture, "rect", x=index + gap / 2, y=100 - height, width=1 - gap, height=height, class_=f"bar {kind}"
        )
        _add(bar, "title", _cell_words(cell, compared=timeline.compared))
    if planned:
        y = 100 - planned / top * 100
        _add(picture, "line", x1=0, x2=len(cells), y1=y, y2=y, class_="plan")
    return _markup(picture)


def _cell_words(cell: Cell, *, compared: bool) -> str:
    which = f"rollout {cell.first}" if cell.first == cell.last else f"rollouts {cell.first} to {cell.last}"
    words = f"{which}: {cell.updates:.3g} updates" + (" each" if cell.first != cell.last else "")
    return words + (f", {cell.differing} not as planned" if compared and cell.differing else "")


def versions(cells: Sequence[Cell]) -> Markup:
    """Version of the trainer's weights and of the sampler's, rollout by rollout."""
    lowest, highest = version_range(cells)
    furthest = most_behind(cells)
    described = f"Weight version of the trainer and of the sampler over the rollouts; the sampler is at most {furthest} updates behind"
    picture = _picture(len(cells), 100, described, stretched=True)
    span = max(highest - lowest, 1)

    def height(version: int) -> float:
        return 97 - (version - lowest) / span * 94

    for index, cell in enumerate(cells):
        if cell.sampler_version is not None and cell.sampler_version != cell.policy_version:
            top, bottom = sorted((height(cell.policy_version), height(cell.sampler_version)))
            gap = _add(picture, "rect", x=index, y=top, width=1, height=bottom - top, class_="behind")
            behind = cell.policy_version - cell.sampler_version
            _add(gap, "title", f"rollout {cell.first}: sampler {behind} updates behind")
    for name, values in (
        ("trainer", [cell.policy_version for cell in cells]),
        ("sampler", [cell.sampler_version for cell in cells]),
    ):
        _add(picture, "path", d=_steps([None if v is None else height(v) for v in values]), class_=name)
    return _markup(picture)


def sampler_seen(cells: Sequence[Cell]) -> bool:
    """Whether the sampler's version is known anywhere."""
    return any(cell.sampler_version is not None for cell in cells)


def most_behind(cells: Sequence[Cell]) -> int:
    """Updates that the sampler was behind the trainer, at most."""
    return max(cell.policy_version - cell.sampler_version for cell in cells if cell.sampler_version is not None)


def version_range(cells: Sequence[Cell]) -> tuple[int, int]:
    """The lowest and the highest version that the chart of versions shows."""
    known = [v for cell in cells for v in (cell.policy_version, cell.sampler_version) if v is not None]
    return min(known), max(known)


def _steps(heights: Sequence[float | None]) -> str:
    """A line of steps, one unit wide each; broken where a height is not known."""
    parts = []
    for index, (before, y) in enumerate(zip([None, *heights], heights, strict=False)):
        if y is not None:
            parts.append(f"{'M' if before is None else 'L'}{index} {y:.3g}H{index + 1}")
    return "".join(parts)


def bar(value: float, largest: float, *, inner: float | None = None, described: str) -> Markup:
    """A horizontal bar; `inner` is drawn within it.

    Args:
        value: Its length.
        largest: The length that fills the picture.
        inner: A second value, at most the first.
        described: What it says, in words.
    """
    picture = _picture(100, 10, described, stretched=True)
    scale = 100 / largest if largest > 0 else 0.0
    _add(picture, "rect", x=0, y=0, width=100, height=10, class_="track")
    _add(picture, "rect", x=0, y=0, width=min(value * scale, 100), height=10, class_="value")
    if inner is not None:
        _add(picture, "rect", x=0, y=0, width=min(inner * scale, 100), height=10, class_="inner")
    return _markup(picture)
