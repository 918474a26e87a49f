"""Configuration files, Python files and data files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlstep_hooks.launch.files import find_file, unpacked_roots, up_to_root
from rlstep_hooks.launch.inheritance import read_config
from rlstep_hooks.launch.python_file import read_calls
from rlstep_hooks.launch.rows import count_rows
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.launch.yaml_file import LARGEST_FILE, parse_yaml


def test_yaml_keys_are_joined_and_keep_their_place() -> None:
    found = parse_yaml("a:\n  b: 4\n  c: [1, 2]\nd: null\nbase: &x {e: 1}\nother:\n  <<: *x\n  f: 2\n", "c.yaml")
    assert {name: setting.value for name, setting in found.items()} == {
        "a.b": 4, "a.c": [1, 2], "d": None, "base.e": 1, "other.e": 1, "other.f": 2,
    }  # fmt: skip
    assert str(found["a.b"].place) == "c.yaml:2:3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty configuration"),
        ("- 1\n- 2\n", "does not begin with `key: value`"),
        ("a: [1", "c.yaml:"),
        ("a: 1\nb:\n  c: 1\na: 2\n", "a occurs twice: 1 and 2"),
        ("a:\n  b: 1\nc: 2\na:\n  d: 1\n", "a occurs twice: {'b': 1} and {'d': 1}"),
        ("a: &a [*a]\n", "an alias that contains itself"),
        ("a: !!python/object/apply:os.system ['true']\n", "not YAML"),
        ("a: 1\n\tb: 2\n", "c.yaml:2:1"),
    ],
    ids=["empty", "list", "open", "twice", "section", "cycle", "object", "tab"],
)
def test_text_that_is_no_configuration(text: str, message: str) -> None:
    with pytest.raises(LaunchError) as caught:
        parse_yaml(text, "c.yaml")
    assert message in str(caught.value)


def test_aliases_that_multiply_are_bounded() -> None:
    layers = ["a0: &a0 {x0: 1, x1: 1, x2: 1, x3: 1, x4: 1, x5: 1, x6: 1, x7: 1}"]
    layers += [f"a{n}: &a{n} {{" + ", ".join(f"y{i}: *a{n - 1}" for i in range(8)) + "}" for n in range(1, 8)]
    with pytest.raises(LaunchError, match="more than"):
        parse_yaml("\n".join(layers), "c.yaml")


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    large.write_text("a: 1\n" + "#" * LARGEST_FILE)
    with pytest.raises(LaunchError, match="larger than 1 MiB"):
        read_config(large)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: \xff\n")
    with pytest.raises(LaunchError, match="not UTF-8"):
        read_config(binary)


def test_toml_tables_are_joined(tmp_path: Path) -> None:
    pytest.importorskip("tomllib", reason="Python 3.10 has no reader of TOML")
    path = tmp_path / "rl.toml"
    path.write_text("max_steps = 5\n[orchestrator]\nbatch_size = 128\n")
    found = read_config(path).settings
    assert {name: setting.value for name, setting in found.items()} == {"max_steps": 5, "orchestrator.batch_size": 128}
    assert str(found["orchestrator.batch_size"].place).endswith("rl.toml:3:1")
    path.write_text("max_steps = \n")
    with pytest.raises(LaunchError, match="not TOML"):
        read_config(path)


def test_calls_of_a_python_file(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    witness = tmp_path / "witness"
    path.write_text(
        f"open({str(witness)!r}, 'w')\n"
        "N = 8\nM = N * 2 + 1\nK = 3\nK += 1\nextra = dict(beta=0.0)\n"
        "class Args:\n    num_envs: int = 4\n    lr: float = 2.5e-4\n"
        "c = GRPOConfig('out', batch=N, size=M, often=K, n=-1, epochs=int(1e6), names=['a'], call=len(x), **extra, **{'mu': 2})\n"
        "model = PPO('Mlp', env, n_steps=2048)\nmodel.learn(total_timesteps=1_000_000)\n"
    )
    found = read_calls(path).settings
    values = {name: setting.value for name, setting in found.items() if not setting.unknown}
    assert not witness.exists()
    assert values["GRPOConfig.0"] == "out"
    names = ("batch", "size", "n", "epochs", "beta", "mu")
    assert [values[f"GRPOConfig.{name}"] for name in names] == [8, 17, -1, 1_000_000, 0.0, 2]
    assert values["learn.total_timesteps"] == 1_000_000
    assert values["Args.num_envs"] == 4
    assert values["PPO.n_steps"] == 2048
    assert {"GRPOConfig.often", "GRPOConfig.call"} <= {name for name, setting in found.items() if setting.unknown}
    assert str(found["GRPOConfig.batch"].place).endswith("train.py:10:29")


@pytest.mark.parametrize(
    "text", ["def f(:\n", "x = 'open\n", "(" * 3000 + ")" * 3000, "a\0b"], ids=["syntax", "quote", "deep", "zero"]
)
def test_a_file_that_is_no_python(text: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    with pytest.raises(LaunchError, match=r"train\.py"):
        read_calls(path)


def test_rows_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"p": 1}\n{"p": 2}\n\n')
    (tmp_path / "b.jsonl").write_text('{"p": 3}')
    (tmp_path / "c.json").write_text(json.dumps([1, 2, 3, 4]))
    assert count_rows(["a.jsonl"], tmp_path).count == 2
    assert count_rows(["a.jsonl", "b.jsonl", "c.json"], tmp_path).count == 7
    assert count_rows(["*.jsonl"], tmp_path).count == 3
    assert count_rows([str(tmp_path)], tmp_path).count == 3


def test_rows_are_counted_where_the_other_files_of_a_launch_are_found(tmp_path: Path) -> None:
    """A script below the root names its data from the root, as it names its configuration; a folder that it changes to comes first."""
    (tmp_path / ".git").mkdir()
    scripts = tmp_path / "scripts"
    for folder, rows in ((tmp_path / "data", 3), (tmp_path / "copy" / "data", 5)):
        folder.mkdir(parents=True)
        (folder / "a.jsonl").write_text("{}\n" * rows)
    scripts.mkdir()
    assert count_rows(["data/a.jsonl"], scripts).count == 3
    assert count_rows(["data/*.jsonl"], scripts).count == 3
    assert count_rows(["data/a.jsonl"], scripts, str(tmp_path / "copy")).count == 5
    assert "there is no such file here" in count_rows(["data/b.jsonl"], scripts).source


def test_rows_of_columnar_files(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="parquet and arrow files are counted where pyarrow is")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"prompt": list(range(7473))})
    parquet.write_table(table, tmp_path / "train.parquet")
    with (
        pyarrow.OSFile(str(tmp_path / "data.arrow"), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table)
    assert count_rows(["train.parquet"], tmp_path).count == 7473
    assert count_rows(["data.arrow"], tmp_path).count == 7473


def test_rows_that_are_not_known_have_a_reason(tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"no parquet")
    (tmp_path / "x.csv").write_text("a\n")
    for paths, reason in (
        ([], "names no data file"),
        (["openai/gsm8k"], "no such file here"),
        (["*.nothing"], "is not here"),
        (["x.csv"], "not counted"),
        (["broken.parquet"], "broken.parquet"),
    ):
        rows = count_rows(paths, tmp_path)
        assert rows.count is None
        assert reason in rows.source
        assert "--rows" in rows.source


def test_a_file_is_found_from_the_root_of_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home" / "repo" / ".git").mkdir(parents=True)
    root = tmp_path / "home" / "repo"
    folder = root / "examples" / "a"
    folder.mkdir(parents=True)
    outside = tmp_path / "home" / "x.yaml"
    for file in (root / "configs" / "c.yaml", root / "pkg" / "config" / "d.yaml", outside, folder / "own.yaml"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a: 1")
    monkeypatch.chdir(tmp_path)
    assert find_file("configs/c.yaml", folder) == root / "configs" / "c.yaml"
    assert find_file("own.yaml", folder) == folder / "own.yaml"
    assert find_file("d.yaml", folder, beside=("pkg", "pkg/config")) == root / "pkg" / "config" / "d.yaml"
    assert (
        find_file(str(tmp_path / "configs" / "c.yaml"), folder) == root / "configs" / "c.yaml"
    )  # `$(pwd)/configs/c.yaml`
    assert find_file("x.yaml", folder) is None
    assert find_file("x.yaml", folder, str(outside.parent)) == outside
    assert find_file("", folder) is None


def test_the_root_of_an_unpacked_repository_is_told_by_what_repositories_have_there(tmp_path: Path) -> None:
    launch = tmp_path / "work/project/scripts/train"
    launch.mkdir(parents=True)
    (tmp_path / "work/README.md").write_text("")
    assert unpacked_roots(launch) == [tmp_path / "work"]
    (tmp_path / "work/project/scripts/README.md").write_text("")
    (tmp_path / "work/project/.gitignore").write_text("")
    # Nothing above a folder that has what only a root has: other projects lie there.
    assert unpacked_roots(launch) == [tmp_path / "work/project/scripts", tmp_path / "work/project"]
    assert up_to_root(launch) == [tmp_path / "work/project/scripts", tmp_path / "work/project"]


def test_a_home_folder_is_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = tmp_path / "project/scripts"
    launch.mkdir(parents=True)
    (tmp_path / ".gitignore").write_text("")
    assert unpacked_roots(launch) == [tmp_path]
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert unpacked_roots(launch) == []
