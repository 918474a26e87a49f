"""Makes the lists of commits by release, `rlstep_hooks/systems/*/commits.json`, of clones of the frameworks' repositories.

    python tests/golden/release_commits.py trl CLONE

A commit of the main branch lies between two releases: the last whose branch begins at it or before it, and the next one. Of TRL it is
said which of both it is like, where the code that decides the schedule is the same. Nothing is kept but the names of commits.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

from packaging.version import InvalidVersion, Version

from rlstep_hooks.systems.trl.system import DECIDING, SYSTEM

SYSTEMS = Path(__file__).parents[2] / "rlstep_hooks" / "systems"
REPOSITORIES = {
    "trl": ("0.4.0", ["huggingface/trl", "lvwerra/trl"]),
    "verl": ("0.2", ["volcengine/verl", "verl-project/verl"]),
    "openrlhf": ("0.5.0", ["OpenRLHF/OpenRLHF"]),
}
SETTINGS = frozenset(SYSTEM.settings)
DIGITS = 8
"""Digits of a commit that are kept: enough to tell some thousand apart."""


TRAINER, CONFIG = "trl/trainer/grpo_trainer.py", "trl/trainer/grpo_config.py"


def main(name: str, clone: str) -> None:
    """Write the list of one framework."""
    first, repositories = REPOSITORIES[name]
    main_branch = git(clone, "rev-list", "--first-parent", "--reverse", "HEAD").split()
    order = {commit: at for at, commit in enumerate(main_branch)}
    tags = {str(version): tag for tag in git(clone, "tag").split() if (version := released(tag)) is not None}
    releases = sorted((each for each in tags if Version(each) >= Version(first)), key=Version)
    begins = {}
    for release in releases:
        base = git(clone, "merge-base", "HEAD", tags[release]).strip()
        above = git(clone, "rev-list", "--first-parent", base).split()
        begins[release] = next(order[commit] for commit in above if commit in order)
    releases.sort(key=lambda release: (begins[release], Version(release)))
    groups: dict[str, list[str]] = {}
    for at, commit in enumerate(main_branch):
        before = [release for release in releases if begins[release] <= at]
        if not before:
            continue
        around = [before[-1], *releases[len(before) : len(before) + 1]]
        if name == "trl":
            own = deciding(clone, commit)
            around = [release for release in around if own and deciding(clone, tags[release]) == own][:1] or around
        groups.setdefault(" ".join(around), []).append(commit[:DIGITS])
    tagged = {release: git(clone, "rev-list", "-1", tags[release])[:DIGITS] for release in releases}
    lines = ",\n".join(f"{json.dumps(names)}: {json.dumps(''.join(commits))}" for names, commits in groups.items())
    text = f'{{"repositories": {json.dumps(repositories)},\n"tagged": {json.dumps(tagged)},\n"between": {{\n{lines}\n}}}}\n'
    (SYSTEMS / name / "commits.json").write_text(text, encoding="utf-8")


def git(clone: str, *words: str) -> str:
    """What git prints; empty where it fails."""
    return subprocess.run(["git", "-C", clone, *words], capture_output=True, text=True, check=False).stdout


@cache
def deciding(clone: str, commit: str) -> str:
    """The code of TRL's GRPO that decides the schedule; empty where it has none yet."""
    trainer, config = (
        git(clone, "rev-parse", "--verify", "-q", f"{commit}:{path}").strip() for path in (TRAINER, CONFIG)
    )
    return sampling(clone, trainer) + defaults(clone, config) if trainer else ""


@cache
def sampling(clone: str, blob: str) -> str:
    """The sampler, and the methods that give each process its prompts."""
    found = []
    for node in ast.walk(ast.parse(git(clone, "cat-file", "-p", blob))):
        named = node.name if isinstance(node, ast.ClassDef | ast.FunctionDef) else ""
        if named in DECIDING or (named.startswith("Repeat") and isinstance(node, ast.ClassDef)):
            found.append(without_strings(node))
    return "\n".join(found)


@cache
def defaults(clone: str, blob: str) -> str:
    """The defaults of the settings that the plan reads, and what the configuration makes of them."""
    found = []
    for node in ast.walk(ast.parse(git(clone, "cat-file", "-p", blob))):
        if (
            isinstance(node, ast.AnnAssign)
            and ast.unparse(node.target) in SETTINGS
            and isinstance(node.value, ast.Call)
        ):
            default = next((word.value for word in node.value.keywords if word.arg == "default"), None)
            found.append(f"{ast.unparse(node.target)} = {ast.unparse(default) if default is not None else ''}")
        elif isinstance(node, ast.FunctionDef) and node.name == "__post_init__":
            found += [ast.unparse(line) for line in ast.walk(node) if isinstance(line, ast.Assign)]
    return "\n".join(found)


def without_strings(node: ast.AST) -> str:
    """The code of a node; texts in it, such as its documentation, do not count."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            inner.value = ""
    return ast.unparse(node)


def released(tag: str) -> Version | None:
    """The release of a tag; None where it is one of a candidate, or no release."""
    try:
        version = Version(tag)
    except InvalidVersion:
        return None
    return None if version.is_prerelease else version


if __name__ == "__main__":
    main(*sys.argv[1:3])
