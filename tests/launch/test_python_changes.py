"""What a Python file changes of the contents of a name, where its functions call each other."""

from __future__ import annotations

import ast

from rlstep_hooks.launch.python_changes import Changes


def changes_of(text: str, name: str) -> list[str | None]:
    """The keys that a file changes of what a name holds."""
    tree = ast.parse(text)
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    return [change.key for change in Changes(tree, above).of(name)]


def test_classes_whose_methods_call_those_above_them_are_followed_once_each() -> None:
    # Each `super().__init__` may be any of the twelve: their number must not be multiplied with every call within another.
    text = "".join(
        f"class C{n}(C{n - 1}):\n    def __init__(self, ids):\n        super().__init__(ids)\n" for n in range(1, 13)
    )
    # The twelve, the object that is made, and `fill`.
    assert len(changes_of(f"{text}C9(ids)\nfill(ids)\n", "ids")) == 12 + 1 + 1
    assert changes_of(text.replace("super().__init__(ids)", "print(ids)") + "ids['a'] = 1\n", "ids") == ["a"]
