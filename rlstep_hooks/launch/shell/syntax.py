"""The syntax tree of a shell text, as tree-sitter's bash grammar gives it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser


@lru_cache(maxsize=1)
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(text: bytes) -> Node:
    """The root of a text's tree. Parts that are not shell are error nodes in it (`first_error`)."""
    return _parser().parse(text).root_node


def source_of(node: Node | None) -> str:
    """A node's source text; empty for None."""
    return node.text.decode() if node is not None and node.text is not None else ""


def first_error(node: Node) -> Node | None:
    """The first part of a node that is not shell; None if there is none."""
    if node.type == "ERROR" or node.is_missing:
        return node
    if not node.has_error:
        return None
    return next((found for child in node.children if (found := first_error(child)) is not None), None)
