"""Writes the page. jinja2 is imported here and nowhere else."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from rlstep_hooks.planning.words import number, printable
from rlstep_hooks.show.page import pictures

if TYPE_CHECKING:
    from pathlib import Path

    from jinja2 import Template

    from rlstep_hooks.show.page.model import Page


def write_page(page: Page, path: Path) -> None:
    """Write the page; an existing file is replaced.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_text(page_html(page), encoding="utf-8", newline="\n")


def page_html(page: Page) -> str:
    """The page as HTML. What comes from the run is shown as text, whatever characters it has."""
    return _template().render(page=page, pictures=pictures)


@cache
def _template() -> Template:
    environment = Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    return environment.get_template("page.html.jinja")


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _shown(value: Any) -> Any:
    """Text with every character made visible; markup of this package stays as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
