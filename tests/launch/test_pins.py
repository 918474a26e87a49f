"""Which release of a package a checkout installs, in all the forms in which it is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.pins import find_pins

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = "69ad852e5654a77f1695eb4c608906fe0c7e8624"
OF_COMMIT = ("", "huggingface/trl", COMMIT)


def pins(folder: Path, package: str = "trl") -> list[tuple[str, str, str]]:
    return [(pin.constraint, pin.repository, pin.reference) for pin in find_pins(package, [folder])]


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("requirements.txt", "torch==2.6\ntrl==0.14.0\n", ("==0.14.0", "", "")),
        ("requirements.txt", "trl[vllm] >= 0.9, <0.12 ; python_version > '3.9'\n", (">=0.9,<0.12", "", "")),
        ("requirements-train.txt", f"git+https://github.com/huggingface/trl.git@{COMMIT}#egg=trl\n", OF_COMMIT),
        ("requirements.txt", "git+https://github.com/huggingface/trl\n", ("", "huggingface/trl", "")),
        (
            "requirements.txt",
            "https://github.com/huggingface/trl/archive/refs/tags/v0.15.1.zip\n",
            ("", "huggingface/trl", "v0.15.1"),
        ),
        ("setup.py", f'deps = ["trl @ git+https://github.com/huggingface/trl.git@{COMMIT}",\n "vllm"]\n', OF_COMMIT),
        ("setup.cfg", "install_requires =\n    trl~=0.15.0\n", ("~=0.15.0", "", "")),
        ("pyproject.toml", '[project]\ndependencies = [\n  "trl>=0.17,<0.18",\n]\n', (">=0.17,<0.18", "", "")),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntrl = "^0.14.1"\n', (">=0.14.1,<0.15", "", "")),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntrl = "~1.2"\n', (">=1.2,<1.3", "", "")),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntrl = {version = "0.16.0", extras = ["vllm"]}\n', ("==0.16.0", "", "")),
        (
            "pyproject.toml",
            f'[tool.uv.sources]\ntrl = {{ git = "https://github.com/huggingface/trl.git", rev = "{COMMIT}" }}\n',
            OF_COMMIT,
        ),
        ("environment.yml", "dependencies:\n  - pip:\n    - trl==0.16.1\n", ("==0.16.1", "", "")),
        ("environment.yml", "dependencies:\n  - trl=0.16.1\n", ("==0.16.1", "", "")),
        ("Dockerfile", "FROM x\nRUN pip install \\\n    vllm==0.7 \\\n    trl==0.14.0\n", ("==0.14.0", "", "")),
        ("Dockerfile", "ARG TRL_VERSION=0.17.0\nRUN pip install trl==${TRL_VERSION}\n", ("==0.17.0", "", "")),
        ("install.sh", 'uv pip install "trl[vllm]==0.18.0"\n', ("==0.18.0", "", "")),
        ("README.md", "# Install\n```\npip install trl==0.14.0 vllm\n```\n", ("==0.14.0", "", "")),
        ("uv.lock", '[[package]]\nname = "trl"\nversion = "0.19.1"\nsource = { registry = "x" }\n', ("==0.19.1", "", "")),
        (
            "uv.lock",
            '[[package]]\nname = "trl"\nversion = "0.16.0.dev0"\n'
            f'source = {{ git = "https://github.com/huggingface/trl.git?rev=main#{COMMIT}" }}\n\n[[package]]\nname = "x"\n',
            OF_COMMIT,
        ),
        (
            "poetry.lock",
            '[[package]]\nname = "trl"\nversion = "0.16.0.dev0"\n[package.source]\ntype = "git"\n'
            f'url = "https://github.com/huggingface/trl.git"\nreference = "main"\nresolved_reference = "{COMMIT}"\n',
            OF_COMMIT,
        ),
        (
            "Pipfile.lock",
            json.dumps({"default": {"trl": {"hashes": ["x"], "version": "==0.14.0"}}}, indent=4),
            ("==0.14.0", "", ""),
        ),
    ],
)  # fmt: skip
def test_each_form_of_a_pin_is_read(tmp_path: Path, name: str, text: str, found: tuple[str, str, str]) -> None:
    (tmp_path / name).write_text(text)
    assert pins(tmp_path) == [found]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "# trl==0.14.0\ntrl\nmy-trl==0.3\ntrlx==0.7\ntrl-extras==1.0\n"),
        ("README.md", "This needs trl==0.14.0 or later.\n# pip install trl==0.14.0\n"),
        ("Dockerfile", "# RUN pip install trl==0.14.0\nRUN pip install trl==${UNSET}\n"),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntrl = "*"\n[project.optional-dependencies]\ntrl = ["x"]\n'),
        ("notes.txt", "trl==0.14.0\n"),
    ],
)
def test_what_is_no_pin_is_not_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert pins(tmp_path) == []


def test_the_nearest_folder_that_says_something_decides(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text("trl==0.14.0\n")
    (tmp_path / "grpo/scripts").mkdir(parents=True)
    assert pins(tmp_path / "grpo/scripts") == [("==0.14.0", "", "")]
    (tmp_path / "grpo/requirements.txt").write_text("trl==0.16.0\n")
    assert pins(tmp_path / "grpo/scripts") == [("==0.16.0", "", "")]


def test_folders_above_the_repository_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("trl==0.14.0\n")
    (tmp_path / "project/.git").mkdir(parents=True)
    assert pins(tmp_path / "project") == []


def test_prose_counts_where_nothing_else_names_one_version(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("`pip install trl==0.14.0`\n")
    (tmp_path / "pyproject.toml").write_text('dependencies = ["trl>=0.9"]\n')
    assert ("==0.14.0", "", "") in pins(tmp_path)
    (tmp_path / "requirements.txt").write_text("trl==0.16.0\n")
    assert ("==0.14.0", "", "") not in pins(tmp_path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Training uses `trl==0.14.0`.\n", ["==0.14.0"]),
        ("训练统一使用\n`trl==0.14.0`训练\n", ["==0.14.0"]),
        ("Use `trl==0.14.0`, and `TRL==0.14.0` for evaluation.\n", ["==0.14.0"]),
        ("`trl==0.14.0` trains, `trl==0.15.2` evaluates.\n", []),
        ("This does not work with `trl==0.14.0`.\n", []),
        ("Training uses `trl==0.14.0`.\nUpgrade if `trl==0.14.0` fails.\n", []),
        ("Training uses trl 0.14.0.\n", []),
    ],
)
def test_a_release_that_the_text_of_a_readme_names_as_code(tmp_path: Path, text: str, found: list[str]) -> None:
    (tmp_path / "README.md").write_text(text)
    assert [pin for pin, _, _ in pins(tmp_path)] == found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.py", "# /// script\n# dependencies = [\n#     \"trl==0.17.0\",\n# ]\n# ///\nimport trl\n"),
        ("train.sh", "pip install trl==0.17.0\npython train.py\n"),
        ("train.ipynb", '{"cells": [{"source": ["!pip install \\"trl==0.17.0\\"\\n"]}]}'),
    ],
)  # fmt: skip
def test_what_the_launch_installs_itself_comes_first(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "requirements.txt").write_text("trl==0.14.0\n")
    (tmp_path / name).write_text(text)
    found = find_pins("trl", [tmp_path], tmp_path / name)
    assert [pin.constraint for pin in found] == ["==0.17.0"]


def test_a_name_is_found_in_all_its_spellings(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("Stable_Baselines3==2.4.0\n")
    assert pins(tmp_path, "stable-baselines3") == [("==2.4.0", "", "")]
