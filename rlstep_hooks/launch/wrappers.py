"""The wrappers of a command, which are taken off: `env`, `srun`, `uv run`, `docker run`, `accelerate launch`, `bash -c` and others."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.command import Command, Program
from rlstep_hooks.launch.launchers import accelerate_processes, deepspeed_processes, torchrun_processes
from rlstep_hooks.launch.terminals import TERMINALS, in_terminal
from rlstep_hooks.launch.text import LaunchError, Token

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.launch.command import Processes
    from rlstep_hooks.launch.text import Place

_PYTHON = re.compile(r"(.*/)?(python|pypy)[0-9.]*$")
_PYTHON_FLAG = re.compile(r"-[bBdEIOPqsSuv]+$")
"""Options of Python that take no value."""
SHELLS = frozenset({"bash", "sh", "zsh", "dash"})

# Options of wrappers that take a value; all other options take none. Options behind the wrapped command are its own.
_VALUES = {
    "srun": (
        "-N", "-n", "-c", "-p", "-w", "-J", "-o", "-e", "-t", "-A", "-D", "--nodes", "--ntasks", "--partition", "--nodelist",
        "--job-name", "--output", "--error", "--time", "--account", "--gres", "--container-image", "--container-mounts",
        "--ntasks-per-node", "--cpus-per-task", "--gpus-per-node", "--mpi", "--chdir", "--qos", "--mem",
    ),
    "sbatch": (
        "-N", "-n", "-c", "-p", "-w", "-J", "-o", "-e", "-t", "-A", "-D", "-d", "-a", "--wrap", "--nodes", "--ntasks", "--partition",
        "--job-name", "--output", "--error", "--time", "--account", "--gres", "--dependency", "--array", "--export",
        "--ntasks-per-node", "--cpus-per-task", "--gpus-per-node", "--chdir", "--qos", "--mem", "--nodelist",
    ),
    "ssh": ("-b", "-c", "-D", "-E", "-e", "-F", "-I", "-i", "-J", "-L", "-l", "-m", "-O", "-o", "-p", "-Q", "-R", "-S", "-W", "-w"),
    "coverage": ("--source", "--data-file", "--rcfile", "--omit", "--include", "--context", "--concurrency"),
    "nsys": ("-o", "-t", "-s", "-w", "-c", "-f", "--output", "--trace", "--sample", "--capture-range"),
    "xvfb-run": ("-s", "-n", "-e", "-f", "--server-args", "--server-num"),
    "uv": ("--with", "--extra", "--group", "--python", "-p", "--directory", "--project", "--env-file", "--index", "--frozen-lock"),
    "env": ("-u", "--unset", "-C", "--chdir"),
    "nice": ("-n",),
    "timeout": ("-s", "-k", "--signal", "--kill-after"),
    "taskset": ("-c",),
    "numactl": ("-N", "-m", "-C"),
    "stdbuf": ("-i", "-o", "-e"),
    "mpirun": ("-n", "-np", "-x", "-H", "--hostfile", "-hostfile", "--map-by", "--bind-to", "-N"),
    "conda": ("-n", "-p", "--name", "--prefix"),
    "python": ("-W", "-X"),
    "accelerate": (
        "--config_file", "--num_processes", "-n", "--num_machines", "--machine_rank", "--main_process_ip",
        "--main_process_port", "--mixed_precision", "--dynamo_backend", "--rdzv_backend", "--rdzv_conf",
        "--num_cpu_threads_per_process", "--mpirun_hostfile", "--mpirun_ccl",
        "--deepspeed_config_file", "--zero_stage", "--offload_optimizer_device", "--offload_param_device",
        "--gradient_accumulation_steps", "--gradient_clipping", "--zero3_init_flag", "--zero3_save_16bit_model",
        "--deepspeed_hostfile", "--deepspeed_exclusion_filter", "--deepspeed_inclusion_filter", "--deepspeed_multinode_launcher",
        "--gpu_ids", "--same_network", "--max_restarts", "--monitor_interval", "--log_dir", "--role", "--tee",
        "--fsdp_version", "--fsdp_sharding_strategy", "--fsdp_auto_wrap_policy", "--fsdp_transformer_layer_cls_to_wrap",
        "--fsdp_backward_prefetch", "--fsdp_state_dict_type", "--fsdp_offload_params", "--use_deepspeed_config",
        "--parallelism_config_tp_size", "--parallelism_config_cp_size", "--parallelism_config_dp_shard_size",
    ),
    "torchrun": (
        "--nproc_per_node", "--nnodes", "--node_rank", "--master_addr", "--master_port", "--rdzv_backend", "--rdzv_endpoint",
        "--rdzv_id", "--rdzv_conf", "--max_restarts", "--monitor_interval", "--start_method", "--role", "--log_dir", "-r", "-t",
        "--redirects", "--tee", "--local_ranks_filter", "--local_addr",
    ),
    "deepspeed": (
        "-H", "--hostfile", "-i", "--include", "-e", "--exclude", "--num_nodes", "--num_gpus", "--min_elastic_nodes",
        "--max_elastic_nodes", "--master_port", "--master_addr", "--launcher", "--launcher_args", "--autotuning", "--save_pid",
        "--bind_core_list", "--node_rank", "--venv_script", "--ssh_port",
    ),
    "ray": (),
}  # fmt: skip


_LOOKED_UP = re.compile(r"\$\((?:which|command -v|type -p) ([\w.+-]+)\)")
"""A program by the place at which the machine has it: `$(which python)`."""


def unwrap(
    tokens: tuple[Token, ...], environment: dict[str, Token], *, shell: Callable[[Token], list[Command]] | None = None
) -> list[Command]:
    """Remove the wrappers of one command.

    Args:
        tokens: The command's words.
        environment: Variables set in front of it.
        shell: Reads the text of `bash -c TEXT`; None to leave such a command as it is.

    Returns:
        The command; several if `bash -c` holds several; none if it is empty.

    Raises:
        LaunchError: A wrapper has no command.
    """
    environment = dict(environment)
    processes: Processes | None = None
    while tokens:
        if (looked_up := _LOOKED_UP.fullmatch(tokens[0].text)) is not None:
            tokens = (Token(looked_up[1], tokens[0].place), *tokens[1:])
        if _holds_unknown_command(tokens[0]) and shell is not None:
            # `$CMD` with a whole command in it, parts of which only the run knows.
            with suppress(LaunchError):  # with what stands for the unknown parts it need not be shell
                return shell(msgspec.structs.replace(tokens[0], text=" ".join(token.text for token in tokens)))
        name = _base_name(tokens[0].text)
        place = tokens[0].place
        if _ASSIGNMENT.match(tokens[0].text):
            key, _, value = tokens[0].text.partition("=")
            environment[key] = msgspec.structs.replace(tokens[0], text=value)
            tokens = tokens[1:]
        elif name in ("env", "nohup", "exec", "time", "sudo", "setsid", "command", "stdbuf", "nice", "unbuffer"):
            tokens, _ = _options(tokens[1:], name)
        elif name in ("numactl", "taskset", "nsys", "xvfb-run", "coverage", "ionice", "catchsegv", "pipenv"):
            tokens, _ = _options(tokens[1 + (_text(tokens, 1) in ("run", "profile")) :], name)
            tokens = _as_python(tokens) if name == "coverage" else tokens
        elif name == "ssh" and shell is not None and (said := _said_to_host(tokens[1:])) is not None:
            return shell(said)
        elif name in ("srun", "mpirun", "mpiexec", "torchx", "kubectl", "ssh", "pdsh") or name in _CONTAINERS:
            rest, given = _options(tokens[1:], name)
            tokens = _inner(rest)
        elif name == "sbatch":
            rest, given = _options(tokens[1:], name)
            if "--wrap" in given:
                return shell(given["--wrap"]) if shell is not None else []
            if "COMMAND" in environment and shell is not None:
                # NeMo-RL's ray.sub runs what this variable holds, on its cluster.
                return shell(environment["COMMAND"])
            return _one(Program("executable", rest[0].text), rest[1:], environment, processes, place) if rest else []
        elif name == "mason.py" or (_PYTHON.match(tokens[0].text) and _base_name(_text(tokens, 1)) == "mason.py"):
            # open-instruct's launcher on Beaker: its own options, then the command.
            return [
                command
                for part in _parts_behind_dashes(tokens)
                for command in unwrap(part, dict(environment), shell=shell)
            ]
        elif name == "timeout":
            tokens, _ = _options(tokens[1:], name)
            tokens = tokens[1:]
        elif name in ("uv", "poetry", "pdm", "conda", "mamba", "pixi") and _text(tokens, 1) == "run":
            tokens, _ = _options(tokens[2:], "conda" if name == "mamba" else name, stop_at=("-m", "--module"))
            if _text(tokens, 0) in ("-m", "--module"):
                python = msgspec.structs.replace(tokens[0], text="python")
                tokens = (python, msgspec.structs.replace(tokens[0], text="-m"), *tokens[1:])
        elif tokens[0].unknown and _text(tokens, 1) == "run" and _from_python(tokens):
            tokens = _from_python(tokens)  # "$CONDA_EXE" run -n env python train.py
        elif name == "ray" and _text(tokens, 1) == "job" and _text(tokens, 2) == "submit":
            after = [index for index, token in enumerate(tokens) if token.text == "--"]
            if not after:
                raise LaunchError("`ray job submit` needs ` -- ` in front of its command", place)
            tokens = tokens[after[0] + 1 :]
        elif name == "accelerate" and _text(tokens, 1) in ("launch", "launch-old"):
            rest, given = _options(tokens[2:], name)
            processes = accelerate_processes(given, place)
            tokens = _launched(rest, given)
        elif name == "torchrun" or (_runs_module(tokens, "torch.distributed.run", "torch.distributed.launch")):
            rest, given = _options(tokens[1 if name == "torchrun" else 3 :], "torchrun")
            processes = torchrun_processes(given, place)
            tokens = _launched(rest, given)
        elif name == "deepspeed":
            rest, given = _options(tokens[1:], name)
            processes = deepspeed_processes(given, place, environment.get("CUDA_VISIBLE_DEVICES"))
            tokens = _launched(rest, given)
        elif name in TERMINALS and (behind := in_terminal(tokens)):
            if len(behind) == 1:
                return shell(behind[0]) if shell is not None else []
            tokens = behind
        elif name in SHELLS:
            rest, given = _options(tokens[1:], "sh")
            if "c" in {key.lstrip("-")[-1:] for key in given} and rest:
                return shell(rest[0]) if shell is not None else []
            return _one(Program("executable", rest[0].text), rest[1:], environment, processes, place) if rest else []
        elif _PYTHON.match(tokens[0].text) or _is_some_python(tokens):
            rest, given = _options(tokens[1:], "python", stop_at=("-m", "-c"))
            if _text(rest, 0) == "-m" and len(rest) > 1:
                if rest[1].text in _LAUNCHER_MODULES:
                    tokens = (msgspec.structs.replace(rest[1], text=_LAUNCHER_MODULES[rest[1].text]), *rest[2:])
                    if rest[1].text == "accelerate.commands.launch":
                        tokens = (tokens[0], msgspec.structs.replace(rest[1], text="launch"), *rest[2:])
                    continue
                if rest[1].text == "cleanrl_utils.benchmark" and shell is not None:
                    return _benchmarked(rest[2:], shell)
                return _one(Program("module", rest[1].text), rest[2:], environment, processes, place)
            if not rest or _text(rest, 0) in ("-c", "-"):
                return []
            return _one(Program("script", rest[0].text), rest[1:], environment, processes, place)
        elif tokens[0].text.endswith(".py"):
            return _one(Program("script", tokens[0].text), tokens[1:], environment, processes, place)
        else:
            return _executable(tokens, environment, processes)
    return []


def _is_some_python(tokens: tuple[Token, ...]) -> bool:
    """Whether the word stands for a Python interpreter that only the run knows: `"$PYTHON" -u -m x.y`, `$PYTHON train.py`."""
    if not tokens[0].unknown:
        return False
    first = next((token.text for token in tokens[1:] if _PYTHON_FLAG.match(token.text) is None), "")
    return first == "-m" or first.endswith(".py")


def _holds_unknown_command(token: Token) -> bool:
    """Whether a word holds several, parts of which only the run knows; the output of one `$(...)` is no text that could be read."""
    is_output = token.text.startswith("$(") and token.text.endswith(")") and token.text.count("$(") == 1
    return bool(token.unknown) and len(token.text.split()) > 1 and not is_output


def _from_python(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """The words of a command from Python on; none where it runs no Python."""
    found = (index for index, token in enumerate(tokens) if _PYTHON.match(token.text))
    start = next(found, len(tokens))
    return tokens[start:]


def _benchmarked(tokens: tuple[Token, ...], shell: Callable[[Token], list[Command]]) -> list[Command]:
    """The command that CleanRL's benchmark runs for each environment and seed (cleanrl_utils/benchmark.py): `--command TEXT`."""
    behind = (after for token, after in pairwise(tokens) if token.text == "--command")
    return [msgspec.structs.replace(command, place=token.place) for token in behind for command in shell(token)]


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
# Executables whose first argument selects the trainer.
_WITH_SUBCOMMAND = frozenset({"trl", "swift", "megatron", "llamafactory-cli", "tune", "rl"})


def _one(
    program: Program,
    arguments: tuple[Token, ...],
    environment: dict[str, Token],
    processes: Processes | None,
    place: Place,
) -> list[Command]:
    return [Command(program, arguments, environment, processes, place)]


def _executable(tokens: tuple[Token, ...], environment: dict[str, Token], processes: Processes | None) -> list[Command]:
    name, place = _base_name(tokens[0].text), tokens[0].place
    if name == "tune" and _text(tokens, 1) == "run":
        rest, given = _options(tokens[2:], "torchrun")
        count = torchrun_processes(given, place) if "--nproc_per_node" in given or "--nnodes" in given else None
        recipe = rest[0].text if rest else ""
        return _one(Program("executable", f"tune run {recipe}"), rest[1:], environment, count, place)
    if name in _WITH_SUBCOMMAND and len(tokens) > 1 and not tokens[1].text.startswith("-"):
        return _one(Program("executable", f"{name} {tokens[1].text}"), tokens[2:], environment, processes, place)
    command = Command(Program("executable", tokens[0].text), tokens[1:], environment, processes, place)
    return [msgspec.structs.replace(command, unknown=tokens[0].unknown)]


_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_CONTAINERS = frozenset({"docker", "podman", "singularity", "apptainer", "nerdctl", "enroot"})
_LAUNCHERS = frozenset(
    ("torchrun", "accelerate", "deepspeed", "ray", "uv", "poetry", "conda", "env", "nohup", "timeout", "srun", "mpirun")
)


def _said_to_host(tokens: tuple[Token, ...]) -> Token | None:
    """The text that `ssh` hands to the shell of another machine: all words behind the host; None where there are none."""
    words = _options(tokens, "ssh")[0][1:]
    if not words:
        return None
    unknown = tuple(each for word in words for each in word.unknown)
    return msgspec.structs.replace(words[0], text=" ".join(word.text for word in words), unknown=unknown)


def _inner(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """The command behind the host, image or job that a wrapper names: from the first word that can only be a program.

    The value of `--env UV_CACHE_DIR=/stage/.cache/uv` is none, whatever it ends in.
    """
    for index, token in enumerate(tokens):
        name = "" if _VARIABLE.match(token.text) else _base_name(token.text)
        script = name.endswith((".sh", ".py"))
        if script or name in SHELLS or name in _LAUNCHERS or name in _WITH_SUBCOMMAND or _PYTHON.match(name):
            return tokens[index:]
    return tokens


def _parts_behind_dashes(tokens: tuple[Token, ...]) -> list[tuple[Token, ...]]:
    """The commands behind ` -- ` that are joined by `&&`, as words that another shell reads later."""
    parts: list[list[Token]] = []
    for token in tokens:
        if token.text == "--" or (token.text in ("&&", ";") and parts):
            parts.append([])
        elif parts and token.text.startswith("&&"):
            parts.append([msgspec.structs.replace(token, text=token.text[2:])])
        elif parts:
            parts[-1].append(token)
    return [tuple(part) for part in parts if part]


def _as_python(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """A module or script without `python` in front of it, as `coverage run` takes it."""
    return (msgspec.structs.replace(tokens[0], text="python"), *tokens) if tokens else ()


def _base_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _text(tokens: tuple[Token, ...], index: int) -> str:
    return tokens[index].text if index < len(tokens) else ""


def _runs_module(tokens: tuple[Token, ...], *modules: str) -> bool:
    return bool(_PYTHON.match(tokens[0].text)) and _text(tokens, 1) == "-m" and _text(tokens, 2) in modules


def _options(
    tokens: tuple[Token, ...], wrapper: str, *, stop_at: tuple[str, ...] = ()
) -> tuple[tuple[Token, ...], dict[str, Token]]:
    """Split a wrapper's own options from the command behind them.

    Returns:
        The command, and the options by name with the token of their value (the option's own token if it takes none).
    """
    takes_value = _VALUES.get(wrapper, ())
    given: dict[str, Token] = {}
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.text == "--":
            return tokens[index + 1 :], given
        if not token.text.startswith("-") or token.text == "-" or token.text in stop_at:
            break
        name, equals, value = token.text.partition("=")
        name = name.replace("-", "_").replace("__", "--", 1) if name.startswith("--") else name
        if equals:
            given[name] = msgspec.structs.replace(token, text=value)
        elif (name in takes_value or token.text in takes_value) and index + 1 < len(tokens):
            index += 1
            given[name] = tokens[index]
        else:
            given[name] = token
        index += 1
    return tokens[index:], given


def _launched(rest: tuple[Token, ...], given: dict[str, Token]) -> tuple[Token, ...]:
    """The command behind a launcher as a Python command: a module with -m or --module, an executable without Python."""
    if not rest:
        return ()
    if "--no_python" in given:
        return rest
    python = msgspec.structs.replace(rest[0], text="python")
    if "-m" in given or "--module" in given:
        return (python, msgspec.structs.replace(rest[0], text="-m"), *rest)
    return (python, *rest) if rest[0].text.endswith(".py") else rest
