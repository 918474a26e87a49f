"""Makes the lists of commits by release, `rlstep_hooks/systems/*/commits.json`, of clones of the frameworks' repositories.

    python tests/golden/release_commits.py trl CLONE WHEELS

A commit of the main branch lies between two releases: the last whose branch begins at it or before it, and the next one. Of TRL it is
said which of both it is like, where the code that decides the schedule is the same, and a mark of that code is kept. Of releases whose
tags the clone does not have, the wheels are read.

    python tests/golden/release_commits.py swift "" WHEELS

Of ms-swift only wheels are read: its releases have marks, and no commits.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

from packaging.version import InvalidVersion, Version

from rlstep_hooks.systems.swift.checkout import deciding as deciding_in_swift
from rlstep_hooks.systems.trl.checkout.deciding import FILES, mark_of

SYSTEMS = Path(__file__).parents[2] / "rlstep_hooks" / "systems"
REPOSITORIES = {
    "trl": ("0.4.0", ["huggingface/trl", "lvwerra/trl"]),
    "verl": ("0.2", ["volcengine/verl", "verl-project/verl"]),
    "openrlhf": ("0.5.0", ["OpenRLHF/OpenRLHF"]),
}
DIGITS = 8
"""Digits of a commit that are kept: enough to tell some thousand apart."""


def main(name: str, clone: str, wheels: str = "") -> None:
    """Write the list of one framework."""
    if name == "swift":
        write_of_swift(Path(wheels))
        return
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
    marks: dict[str, str] = {}
    if name == "trl":
        marks = {release: own for release in releases if (own := deciding(clone, tags[release]))} | of_wheels(
            Path(wheels)
        )
    of_releases = {release: marks[release] for release in sorted(marks, key=Version)}
    lines = ",\n".join(f"{json.dumps(names)}: {json.dumps(''.join(commits))}" for names, commits in groups.items())
    text = f'{{"repositories": {json.dumps(repositories)},\n"tagged": {json.dumps(tagged)},\n"between": {{\n{lines}\n}}'
    text += f',\n"deciding": {json.dumps(of_releases)}}}\n' if of_releases else "}\n"
    (SYSTEMS / name / "commits.json").write_text(text, encoding="utf-8")


def write_of_swift(folder: Path) -> None:
    """Write the list of ms-swift, from the wheels in a folder."""
    found = {}
    for wheel in folder.glob("ms_swift-*.whl"):
        with zipfile.ZipFile(wheel) as content:
            there = set(content.namelist())
            own, on_megatron = (
                deciding_in_swift.mark_of(content.read(file).decode() if file in there else "" for file in files)
                for files in (deciding_in_swift.FILES, deciding_in_swift.ON_MEGATRON)
            )
            found[wheel.name.split("-")[1]] = f"{own} {on_megatron}"
    marks = {release: found[release] for release in sorted(found, key=Version)}
    repositories = ["modelscope/ms-swift", "modelscope/swift"]
    text = f'{{"repositories": {json.dumps(repositories)},\n"tagged": {json.dumps(dict.fromkeys(marks, ""))},\n'
    text += f'"between": {{}},\n"deciding": {json.dumps(marks)}}}\n'
    (SYSTEMS / "swift" / "commits.json").write_text(text, encoding="utf-8")


def git(clone: str, *words: str) -> str:
    """What git prints; empty where it fails."""
    return subprocess.run(["git", "-C", clone, *words], capture_output=True, text=True, check=False).stdout


def deciding(clone: str, commit: str) -> str:
    """The mark of the code of TRL's GRPO that decides the schedule; empty where it has none yet."""
    return mark(clone, *(git(clone, "rev-parse", "--verify", "-q", f"{commit}:{path}").strip() for path in FILES))


@cache
def mark(clone: str, trainer: str, *others: str) -> str:
    """The mark of three files, by their blobs."""
    if not trainer:
        return ""
    return mark_of(*(git(clone, "cat-file", "-p", blob) if blob else "" for blob in (trainer, *others)))


def of_wheels(folder: Path) -> dict[str, str]:
    """The marks of releases whose wheels are in a folder."""
    found = {}
    for wheel in folder.glob("trl-*.whl"):
        with zipfile.ZipFile(wheel) as content:
            found[wheel.name.split("-")[1]] = mark_of(*(content.read(name).decode() for name in FILES))
    return found


def released(tag: str) -> Version | None:
    """The release of a tag; None where it is one of a candidate, or no release."""
    try:
        version = Version(tag)
    except InvalidVersion:
        return None
    return None if version.is_prerelease else version


if __name__ == "__main__":
    main(*sys.argv[1:4])
