"""Launch files as JUnit XML, the form in which CI systems show tests: a file is a test, an error a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from rlstep_hooks.planning.words import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.planning.checked import Checked


def junit(checked: Sequence[Checked], *, strict: bool) -> str:
    """Write checked files as one suite of JUnit's XML.

    Args:
        checked: The files.
        strict: Whether warnings fail too.
    """
    suite = ElementTree.Element("testsuite", name="rlstep check", tests=str(len(checked)))
    failures = skipped = 0
    for one in checked:
        case = ElementTree.SubElement(suite, "testcase", classname="rlstep.check", name=one.path)
        if one.plan is None:
            skipped += 1
            ElementTree.SubElement(case, "skipped", message=printable(one.reason))
        failing = [each for each in one.findings if fails(each.finding.severity, strict=strict)]
        failures += bool(failing)
        if failing:
            first = failing[0].finding
            failure = ElementTree.SubElement(
                case, "failure", type=first.code, message=f"{first.title}: {printable(first.observed)}"
            )
            failure.text = "\n\n".join(f"{each.place}\n{printable(str(each.finding))}" for each in failing)
    suite.set("failures", str(failures))
    suite.set("skipped", str(skipped))
    suite.set("errors", "0")
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def fails(severity: str, *, strict: bool) -> bool:
    """Whether a finding of this severity fails a check."""
    return severity == "error" or (strict and severity == "warning")
