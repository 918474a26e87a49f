"""Random Python programs in which a dict has many names, containers and functions; Python itself says what `n` is in the end.

`python -m tests.launch.random_aliases 20000 7` reads 20 000 of them, drawn by the seed 7, and shows those that are read wrongly.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from rlstep_hooks.launch.python_file import read_calls


def read(folder: Path, text: str) -> object:
    """The value of `n` that a file is read to give `Config`; None where it is asked about."""
    (folder / "train.py").write_text(text)
    calls = read_calls(folder / "train.py", finder=lambda name: folder / name)
    found = calls.settings.get("Config.n")
    return None if found is None or found.unknown or "Config" in calls.opened else found.value


def run(text: str) -> object:
    """The value that Python gives it."""
    given: list[Any] = []
    names = {"Config": lambda **words: given.append(words["n"]), "__name__": "__main__"}
    exec(compile(text, "train.py", "exec"), names)
    return given[-1]


class _Program:
    """A program that is being drawn: each line binds a name, changes a thing, or calls a function."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.dicts = ["inner"]
        """Names of dicts that have `n`."""
        self.boxes: list[str] = []
        """Expressions that are such a dict, within something else."""
        self.functions: list[str] = []
        self.objects: list[str] = []
        """Objects whose method `set` changes the dict that they were given."""
        self.classes: list[str] = []
        self.kept = self.held = False
        """Whether a function that has been drawn keeps its parameter in `STORE`, or in `HELD`."""
        self._number = 0

    def new(self) -> str:
        self._number += 1
        return f"v{self._number}"

    def thing(self) -> str:
        """An expression that is a dict."""
        if self.boxes and self._chance.random() < 0.4:
            return self._chance.choice(self.boxes)
        return self._chance.choice(self.dicts)

    def value(self) -> int:
        return self._chance.randint(5, 99)

    def change(self, thing: str) -> str:
        return self._chance.choice((
            f"{thing}['n'] = {self.value()}",
            f"{thing}.update(n={self.value()})",
            f"{thing}['m'] = {self.value()}",
            f"{thing}.update({{'n': {self.value()}}})",
            f"{thing}['n'] += 1",
            f"{thing}.setdefault('n', {self.value()})",
            f"{thing}.setdefault('k', {self.value()})",
        ))  # fmt: skip

    def function(self) -> str:
        """A function of one parameter that changes it, hands it on, or gives it back."""
        name, parameter = f"f{self.new()}", self.new()
        inner = self.new()
        does = [f"{inner} = {parameter}"]
        if self.functions and self._chance.random() < 0.5:
            does.append(f"{self._chance.choice(self.functions)}({self._chance.choice((inner, parameter))})")
        if self._chance.random() < 0.5:
            does.append(self.change(self._chance.choice((inner, parameter))))
        if self._chance.random() < 0.2:
            does.append(f"STORE.append({self._chance.choice((inner, parameter))})")
            self.kept = True
        if self._chance.random() < 0.2:
            does.append(self.change(self._chance.choice(self.dicts)))
        if self._chance.random() < 0.1:
            does.insert(0, f"global HELD\n    HELD = {parameter}")
            self.held = True
        does.append(f"return {self._chance.choice((inner, parameter, f'dict({inner})'))}")
        self.functions.append(name)
        return f"def {name}({parameter}):\n    " + "\n    ".join(does)

    def line(self) -> str:
        """The next statement."""
        thing, name = self.thing(), self.new()
        kind = self._chance.randrange(20)
        if kind < 4:
            self.dicts.append(name)
            return f"{name} = {thing}"
        if kind == 4:
            self.dicts.append(name)
            return self._chance.choice(
                (f"{name} = dict({thing})", f"{name} = {{**{thing}}}", f"{name} = {thing}.copy()")
            )
        if kind == 5:
            self.boxes.append(f"{name}['a']")
            return self._chance.choice((f"{name} = {{'a': {thing}}}", f"{name} = dict(a={thing})"))
        if kind == 6:
            self.boxes.append(f"{name}[0]")
            return self._chance.choice((f"{name} = [{thing}]", f"{name} = []\n{name}.append({thing})"))
        if kind == 7:
            self.dicts.append(name)
            return f"{name}, {self.new()} = {thing}, 3"
        if kind == 8:
            self.dicts.append(name)
            return self._chance.choice((f"{name} = {thing} or {{}}", f"{name} = {thing} if {thing} else {{}}"))
        if kind == 9:
            return f"for {name} in [{thing}, {self.thing()}]:\n    {self.change(name)}"
        if kind == 10:
            return self.function()
        if kind == 11 and self.functions:
            self.dicts.append(name)
            return f"{name} = {self._chance.choice(self.functions)}({thing})"
        if kind == 12 and self.functions:
            return f"{self._chance.choice(self.functions)}({thing})"
        if kind == 13:
            self.boxes.append(f"{name}.kw")
            return f"class C{name}:\n    pass\n{name} = C{name}()\n{name}.kw = {thing}"
        if kind == 14 and (self.kept or self.held):
            return f"for {name} in [*STORE, HELD]:\n    {self.change(name)}"
        if kind == 15 and self.objects:
            return f"{self._chance.choice(self.objects)}.set()"
        if kind == 16 and self.classes:
            self.objects.append(name)
            self.boxes.append(f"{name}.kw")
            return f"{name} = {self._chance.choice(self.classes)}({thing})"
        if kind == 17:
            self.classes.append(f"C{name}")
            does = self.change("self.kw")
            return (
                f"class C{name}:\n    def __init__(self, kw):\n        self.kw = kw\n    def set(self):\n        {does}"
            )
        return self.change(thing)


def program(chance: random.Random) -> str:
    """A random program that gives `n` to `Config` once, at its end or before."""
    drawn = _Program(chance)
    lines = [
        "inner = {'n': 4, 'k': 2}",
        "STORE, HELD = [], {'n': 0}",
        *(drawn.line() for _ in range(chance.randint(3, 16))),
    ]
    thing = drawn.thing()
    lines.append(chance.choice((f"Config(**{thing})", f"Config(n={thing}['n'])")))
    if chance.random() < 0.3:
        lines.append(drawn.change(drawn.thing()))
    return "\n".join(lines) + "\n"


def wrong(folder: Path, number: int, seed: int) -> tuple[list[str], int]:
    """The programs that are read wrongly, of a number of random ones, and how many are read rightly."""
    chance, found, right = random.Random(seed), list[str](), 0
    for _ in range(number):
        text = program(chance)
        value = read(folder, text)
        if value is not None and value != run(text):
            found.append(f"{text}# read as {value}, and is {run(text)}\n")
        right += value is not None
    return found, right - len(found)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        texts, read_rightly = wrong(Path(place), int(sys.argv[1]), int(sys.argv[2]))
    print("\n".join(sorted(texts, key=len)[:5]))
    print(f"{read_rightly} of {sys.argv[1]} are read rightly, {len(texts)} wrongly, the others are asked about")
