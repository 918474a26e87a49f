"""Launches in notebooks, Makefiles, Dockerfiles, the YAML of workflows and clusters, and Python that starts programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError, NoLaunchError, UnknownValueError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

SIZES = "--per_device_train_batch_size 4 --num_generations 8 --max_steps 10"
TRL = f"accelerate launch --num_processes 2 -m trl.scripts.grpo {SIZES}"
VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.rollout.n=4"
)

FILES = {
    "Makefile": (
        "N ?= 2\nSIZES := --per_device_train_batch_size 4 --num_generations 8\nSTEPS = 10\ninstall:\n\tpip install trl\n"
        "train: install\n\t@accelerate launch --num_processes $(N) "
        "-m trl.scripts.grpo \\\n\t\t$(SIZES) --max_steps $${MORE:-$(STEPS)}\n"
    ),
    "train.mk": f"train:\n\t{TRL}\n",
    "Dockerfile": f"FROM x\nENV N=2\nRUN pip install trl\nENTRYPOINT [\"accelerate\", \"launch\"]\nCMD {json.dumps(TRL.split()[2:])}\n",
    "Dockerfile.train": f"FROM x\nENV N=2\nCMD {TRL.replace('2', '$N', 1)} \\\n  --seed 1\n",
    "workflow.yml": (
        "on: [push]\nenv: {N: '2'}\njobs:\n  train:\n    steps:\n    - uses: actions/checkout@v4\n    - name: train\n      run: |\n"
        f"        pip install trl\n        {TRL.replace('2', '$N', 1)}\n"
    ),
    "job.yaml": (
        "kind: Service\n---\nkind: Job\nspec:\n  template:\n    spec:\n      containers:\n      - name: t\n"
        "        env: [{name: N, value: '2'}]\n        command: [bash, -c]\n        args:\n        - |\n          set -e\n"
        f"          {TRL.replace('2', '$N', 1)}\n"
    ),
    "pod.yaml": f"spec:\n  containers:\n  - command: [accelerate]\n    args: {json.dumps(TRL.split()[1:])}\n",
    "compose.yaml": f"services:\n  train:\n    environment: [N=2]\n    command: {TRL}\n",
    "gitlab.yml": f"train:\n  stage: gpu\n  script:\n  - pip install trl\n  - {TRL}\n",
    "start.py": (
        "import subprocess\nN = 2\nSIZES = ['--per_device_train_batch_size', '4', '--num_generations', '8']\n"
        "command = ['accelerate', 'launch', '--num_processes', str(N), '-m', 'trl.scripts.grpo', '--max_steps', '10']\n"
        "subprocess.run(command + SIZES, check=True)\n"
    ),
    "shell.py": f"import os\nN = 2\nos.system(f'{TRL.replace('2', '{N}', 1)}')\n",
    "shell.ipynb": json.dumps({"cells": [
        {"cell_type": "markdown", "source": ["!swift rlhf --rlhf_type grpo"]},
        {"cell_type": "code", "source": ["import os\n", "!pip install trl\n", f"!{TRL[:40]}\\\n", f"  {TRL[40:]}\n"]}]}),
    "bash.ipynb": json.dumps({"cells": [{"cell_type": "code", "source": f"%%bash\n{TRL}\n"}]}),
}  # fmt: skip


def written(tmp_path: Path, name: str, text: str, **options: dict[str, str] | int) -> Plan:
    (tmp_path / name).write_text(text)
    return plan_launch([str(tmp_path / name)], Options(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FILES)
def test_the_launch_in_a_file_is_planned(tmp_path: Path, name: str) -> None:
    schedule = written(tmp_path, name, FILES[name]).schedule
    assert schedule is not None
    sizes = (schedule.world_size, schedule.prompts_per_rollout, schedule.samples_per_prompt, schedule.updates)
    assert sizes == (2, 1, 8, 10)


def test_the_code_of_a_notebook_is_planned_as_a_file_of_python(tmp_path: Path) -> None:
    cells = [
        ["!pip install trl\n", "%pip install \\\n", "    transformers\n", "from trl import GRPOConfig, GRPOTrainer\n"],
        ["if True:\n", "    # once\n", "    !pip install \\\n", "      trl\n", "else:\n", "    %pip install trl\n"],
        [
            "%cd x\n",
            "text = (\n",
            "    'a %s'\n",
            "    % 'b'\n",
            ")\n",
            "args = GRPOConfig(per_device_train_batch_size=8, num_generations=4, max_steps=10)\n",
        ],
        ["GRPOTrainer(args=args).train()"],
    ]
    text = json.dumps({"cells": [{"cell_type": "code", "source": source} for source in cells]})
    schedule = written(tmp_path, "train.ipynb", text).schedule
    assert schedule is not None
    assert (schedule.prompts_per_rollout, schedule.samples_per_prompt, schedule.updates) == (2, 4, 10)


def of_cells(*cells: str) -> str:
    return json.dumps({"cells": [{"cell_type": "code", "source": source} for source in cells]})


OF_A_CELL = "from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer(args=GRPOConfig({sizes}, max_steps=10)).train()\n"
EIGHT, SIXTEEN = (OF_A_CELL.format(sizes=f"per_device_train_batch_size={n}, num_generations=4") for n in (8, 16))


@pytest.mark.parametrize("magic", ["%%writefile train.py", "%%file train.py", "%%writefile  -a train.py"])
def test_a_file_that_a_cell_writes_is_what_the_notebook_starts(tmp_path: Path, magic: str) -> None:
    """What lay there before is overwritten, and the cell is no code of the notebook itself."""
    if "-a" not in magic:
        (tmp_path / "train.py").write_text(SIXTEEN)
    config = "%%writefile two.yaml\ndistributed_type: MULTI_GPU\nnum_processes: 2\n"
    text = of_cells(config, f"{magic}\n{EIGHT}", "!accelerate launch --config_file two.yaml train.py")
    schedule = written(tmp_path, "n.ipynb", text).schedule
    assert schedule is not None
    assert (schedule.world_size, schedule.prompts_per_rollout, schedule.samples_per_prompt) == (2, 4, 4)


def test_a_file_that_cells_write_several_times_is_asked_about(tmp_path: Path) -> None:
    cells = [
        f"%%writefile train.py\n{EIGHT}",
        "!python train.py",
        f"%%writefile train.py\n{SIXTEEN}",
        "!python train.py",
    ]
    with pytest.raises(LaunchError, match=r"several cells write train\.py, with different texts"):
        written(tmp_path, "n.ipynb", of_cells(*cells))
    schedule = written(tmp_path, "n.ipynb", of_cells(cells[0], cells[0], cells[1])).schedule
    assert schedule is not None
    assert schedule.prompts_per_rollout == 2


def test_a_rayjob_names_its_launch(tmp_path: Path) -> None:
    schedule = written(tmp_path, "job.yaml", f"kind: RayJob\nspec:\n  entrypoint: {VERL}\n").schedule
    assert schedule is not None
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout) == (256, 4)


@pytest.mark.parametrize(
    ("name", "text", "variable"),
    [
        ("w.yml", f"jobs: {{t: {{steps: [{{run: '{TRL.replace('8', '${{ matrix.n }}')}'}}]}}}}\n", "matrix_n"),
        ("s.py", f"import os, sys\nos.system(f'{TRL.replace('8', '{sys.argv[1]}')}')\n", "sys_argv_1"),
        (
            "n.ipynb",
            json.dumps({"cells": [{"cell_type": "code", "source": f"!{TRL.replace('8', '{group}')}"}]}),
            "group",
        ),
        ("Makefile", f"t:\n\t{TRL.replace('8', '$(GROUP)')}\n", "GROUP"),
    ],
)
def test_what_a_file_leaves_to_the_run_is_asked_for(tmp_path: Path, name: str, text: str, variable: str) -> None:
    with pytest.raises(UnknownValueError, match=f"--set {variable}=VALUE") as caught:
        written(tmp_path, name, text)
    assert caught.value.unknown.place.source.endswith(name)
    assert written(tmp_path, name, text, variables={variable: "4"}).schedule is not None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Makefile", "test:\n\tpytest\n"),
        ("Dockerfile", "FROM x\nCMD [\"python\", \"serve.py\"]\n"),
        ("Dockerfile", "FROM x\nCMD [broken\n"),
        ("ci.yml", "jobs: {t: {steps: [{run: pytest}]}}\n"),
        ("n.ipynb", '{"cells": [{"cell_type": "code", "source": "print(1)"}]}'),
        ("s.py", "import subprocess\nsubprocess.run(['ls'])\nsubprocess.run(x)\n"),
    ],
)  # fmt: skip
def test_a_file_without_a_launch_is_none(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(NoLaunchError):
        written(tmp_path, name, text)


def test_a_broken_notebook_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="not a notebook"):
        written(tmp_path, "n.ipynb", "{")


def test_several_launches_are_chosen_by_the_line_of_the_file(tmp_path: Path) -> None:
    text = f"one:\n\t{TRL}\ntwo:\n\t{VERL}\n"
    with pytest.raises(LaunchError, match=r"line 2 \(trl\), line 4 \(verl\)"):
        written(tmp_path, "Makefile", text)
    assert written(tmp_path, "Makefile", text, line=4).framework == "verl"
