"""For which release a launch is planned, and what its settings' names show."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.show.plan import plan_text
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.installed import runs_here
from rlstep_hooks.systems.engine.keys import key_list, runs_of
from rlstep_hooks.systems.engine.launches import plan_launch
from rlstep_hooks.systems.engine.release import planned_releases

VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=512 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 "
)
TRL = "accelerate launch --num_processes 8 -m trl.scripts.grpo --num_generations 8 "
OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray --actor.num_gpus_per_node 8 "


def planned(command: str, version: str | None = None) -> Plan:
    return plan_launch(shlex.split(command), Options(rows=10_000, version=version))


def codes(plan: Plan) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in plan.findings if finding.severity != "info"]


def said(plan: Plan) -> str:
    return "\n".join(note.text for note in plan.notes)


@pytest.mark.parametrize(
    ("command", "release"), [(VERL, "verl 0.9.1"), (TRL, "TRL 1.16.0"), (OPENRLHF, "OpenRLHF 0.11.2")]
)
def test_the_newest_release_is_assumed_and_said(command: str, release: str) -> None:
    plan = planned(command)
    assert f"{release}, the newest release that is known" in said(plan)
    assert "the newest release" not in said(planned(command, plan.version))


@pytest.mark.parametrize(
    ("installed", "planned_for", "text"),
    [
        ("0.11.2", "0.11.2", "OpenRLHF 0.11.2, the release that is installed here"),
        ("0.11.0", "0.11.0", "OpenRLHF 0.11.0, the release that is installed here"),
        ("99.0", "0.11.2", "OpenRLHF 0.11.2, the newest release that is known"),
        ("", "0.11.2", "OpenRLHF 0.11.2, the newest release that is known"),
    ],
)
def test_a_launch_that_is_about_to_run_here_is_planned_for_what_is_installed(
    monkeypatch: pytest.MonkeyPatch, installed: str, planned_for: str, text: str
) -> None:
    monkeypatch.setattr("rlstep_hooks.systems.engine.installed.release_here", lambda package: installed)
    words = shlex.split(OPENRLHF)
    plan = plan_launch(words, Options(rows=10_000, here=True))
    assert plan.version == planned_for
    assert text in said(plan)
    assert plan_launch(words, Options(rows=10_000)).version == "0.11.2", "a plan of a text depends on the text alone"
    assert plan_launch(words, Options(rows=10_000, here=True, version="0.11.2")).version == "0.11.2"


def test_a_command_runs_here_if_its_python_is_that_of_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = Path(sys.executable).parent, tmp_path / "bin"
    other.mkdir()
    for name in ("python", "torchrun"):
        (other / name).write_text("#!/bin/sh\n")
        (other / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{own}:{other}:/usr/bin:/bin")
    assert runs_here(["python", "train.py"])
    assert runs_here(["bash", "train.sh"])
    assert runs_here([sys.executable, "-m", "verl.trainer.main_ppo"])
    assert not runs_here([str(other / "python"), "train.py"])
    assert not runs_here(["torchrun", "train.py"]), "the other environment's"
    monkeypatch.setenv("PATH", f"{other}:/usr/bin:/bin")
    assert not runs_here(["bash", "train.sh"])
    assert not runs_here([])


@pytest.mark.parametrize(
    ("command", "version", "because"),
    [
        # verl 0.7.1 is the last whose critic has its engine below `model` (ppo_trainer.yaml of the wheels).
        (f"{VERL} critic.model.fsdp_config.dtype=bfloat16", "0.7.1", "does not know critic.model.fsdp_config.dtype"),
        (f"{TRL} --max_prompt_length 512", "0.28.0", "does not know max_prompt_length"),
        (
            "python3 -m openrlhf.cli.train_ppo_ray --rollout_batch_size 512",
            "0.10.1.post2",
            "does not know rollout_batch_size",
        ),
    ],
)
def test_a_setting_of_older_releases_chooses_the_newest_that_has_it(command: str, version: str, because: str) -> None:
    plan = planned(command)
    assert plan.version == version
    assert plan.schedule is not None
    assert plan.schedule.version == version
    assert because in said(plan)
    assert "--version names another" in said(plan)


def test_the_release_that_is_asked_for_refuses_what_it_does_not_have_and_the_others_are_named() -> None:
    plan = planned(f"{TRL} --max_prompt_length 512", "1.16.0")
    [(code, severity)] = codes(plan)
    assert (code, severity) == ("RLS110", "error")
    assert "Some specified arguments are not used by the HfArgumentParser" in plan.findings[0].observed
    assert plan.findings[0].fix == "accepted by TRL 0.14.0 to 0.28.0: --version 0.28.0"
    assert plan.schedule is not None


@pytest.mark.parametrize(
    ("command", "near", "words"),
    [
        (
            f"{VERL} actor_rollout_ref.rollout.temperatur=1",
            "actor_rollout_ref.rollout.temperature",
            "Could not override",
        ),
        (f"{TRL} --per_device_train_bach_size 4", "per_device_train_batch_size", "not used by the HfArgumentParser"),
        (f"{OPENRLHF} --rollout.n_samples_per_promt 4", "rollout.n_samples_per_prompt", "unrecognized arguments"),
    ],
)
def test_a_misspelling_is_refused_in_the_frameworks_words_with_the_nearest_setting(
    command: str, near: str, words: str
) -> None:
    plan = planned(command)
    assert codes(plan)[0] == ("RLS110", "error")
    assert words in plan.findings[0].observed
    assert plan.findings[0].fix == f"did you mean {near}?"
    assert plan.foreign == ()


def test_a_setting_that_no_release_has_is_one_of_a_fork() -> None:
    plan = planned(f"{VERL} actor_rollout_ref.rollout.made_up_here=5")
    assert plan.foreign == ("actor_rollout_ref.rollout.made_up_here",)
    assert ("RLS116", "error") in codes(plan)
    assert f"--version {plan.version} plans it" in plan.findings[0].fix
    named = planned(f"{VERL} actor_rollout_ref.rollout.made_up_here=5", plan.version)
    assert ("RLS116", "warning") in codes(named)


@pytest.mark.parametrize(
    "accepted",
    [
        "+actor_rollout_ref.model.override_config.attn_implementation=eager",
        "hydra.run.dir=out",
        "--config-path={folder} --config-name=mine made.up.key=1",
        "data.train_max_samples=9000",
    ],
)
def test_what_hydra_accepts_is_not_refused(accepted: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("made: {up: {key: 0}}\n")
    plan = planned(f"{VERL} {accepted.format(folder=tmp_path)}")
    assert plan.foreign == ()
    assert codes(plan) == []


OPEN = (
    "ray_kwargs.ray_init.runtime_env.env_vars.RLSTEP_DIR",
    "ray_init.num_gpus",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache",
    "data.cache_dir",
)


@pytest.mark.parametrize("name", OPEN)
def test_what_is_handed_on_may_have_any_name_and_has_no_effect(name: str) -> None:
    plan = planned(f"{VERL} +{name}=1")
    assert (plan.foreign, codes(plan)) == ((), [])
    assert plan.no_effect == (name,)
    text = plan_text(plan, None, explain=False, width=1000, coloured=False)
    assert text.count(name) == 1


@pytest.mark.parametrize("name", ["made.up.key", "trainer.tries_of_each", "agent_grpo.n"])
def test_a_setting_that_hydra_adds_and_no_release_reads_is_one_of_a_fork_and_is_named_once(name: str) -> None:
    plan = planned(f"{VERL} +{name}=1 trainer.project_name=x actor_rollout_ref.rollout.temperature=0.6")
    assert plan.foreign == (name,)
    (finding,) = (finding for finding in plan.findings if finding.code == "RLS116")
    assert (finding.observed, finding.severity) == (f"+{name}", "warning")
    assert plan.no_effect == ("trainer.project_name",)
    assert plan_text(plan, None, explain=False, width=1000, coloured=False).count(f"{name}") == 1


@pytest.mark.parametrize(
    "command",
    [
        f"{VERL} data.custom_cls.path=mine.py +data.rounds=4",
        f"{VERL} custom_reward_function.path=mine.py +reward_model.judge.url=x",
    ],
)
def test_code_of_ones_own_reads_what_is_added_for_it(command: str) -> None:
    assert planned(command).foreign == ()


def test_flags_may_be_abbreviated_and_turned_off() -> None:
    assert codes(planned(f"{TRL} --per_device_train_batch 8 --no_remove_unused_columns")) == []


@pytest.mark.parametrize("name", ["verl", "trl", "openrlhf"])
def test_every_setting_that_a_plan_reads_is_in_the_list(name: str) -> None:
    """A misspelt declaration, or a list of other wheels, would be seen here."""
    system = index.system_of(name)
    assert system.keys is not None
    known = key_list(system.keys.file)
    assert set(planned_releases(system)) <= set(known.releases)
    declared = {other for each, typed in system.settings.items() for other in (each, *typed.also)}
    missing = {each for each in declared if not known.ever(each) and not _outside_the_configuration(each)}
    assert not missing


def _outside_the_configuration(name: str) -> bool:
    """Hydra's own flags, DAPO's recipe, what verl looks up without having it in its configuration, an engine of its copies alone; GFPO
    and DPPO of TRL, a callback."""
    looked_up = ("agent_loop_manager_class", "use_rollout_log_probs", "micro_batch_size_per_gpu", "use_dynamic_bsz")
    return (
        name in ("config_name", "model_engine", "data.gen_batch_size")
        or ".mindspeed." in name
        or name
        in (
            "divergence_type",
            "num_remains_in_group",
            "transformers_version",
            "EarlyStoppingCallback",
            "should_training_stop",
            "train.unexpected",
            "trainer.unexpected",
        )
        or "filter_groups" in name
        or name.rpartition(".")[2] in looked_up
    )


def test_releases_in_words() -> None:
    known = ("1", "2", "3", "4", "5")
    assert runs_of(("1", "2", "3", "5"), known) == "1 to 3 and 5"
    assert runs_of(("2",), known) == "2"


def test_the_releases_that_accept_a_refused_launch_are_named() -> None:
    command = (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size=64"
    )
    assert "accepted by verl 0.2 to 0.7.1: --version 0.7.1" in said(planned(command))
    # Video-R1#58: 1 700 rows, 8 GPUs, 6 samples of a prompt; its copy of TRL counts prompts for each device.
    refused = planned(f"{TRL} --num_generations 6 --per_device_train_batch_size 1")
    assert refused.schedule is None
    assert "accepted by TRL 0.14.0: --version 0.14.0" in said(refused)


@pytest.mark.parametrize(
    ("version", "updates", "prompts"),
    [
        # Hand-computed: 0.14 counts prompts, ceil(1700 / 8) = 213 updates in each of 8 passes; later ones samples, 8 x 1 / 8 prompts.
        ("0.14.0", 213 * 8, 8),
        ("0.15.2", 1700 * 8, 1),
        ("0.16.1", 1700 * 8, 1),
        ("1.16.0", 1700 * 8, 1),
    ],
)
def test_the_first_releases_of_trl(version: str, updates: int, prompts: int) -> None:
    command = f"{TRL} --per_device_train_batch_size 1 --num_train_epochs 8"
    schedule = plan_launch(shlex.split(command), Options(rows=1700, version=version)).schedule
    assert schedule is not None
    assert (schedule.updates, schedule.prompts_per_rollout, schedule.samples_per_prompt) == (updates, prompts, 8)


def test_two_releases_of_one_launch_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    from rlstep_hooks.cli.app import main

    command = [
        "--",
        *shlex.split(
            f"{VERL} algorithm.adv_estimator=gae critic.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.n=8"
        ),
    ]
    with pytest.raises(SystemExit) as ended:
        main(["diff", "--rows", "10000", "--version-a", "0.3.0.post1", "--version-b", "0.9.1", *command])
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "verl 0.3.0.post1" in said
    assert "critic.updates_per_rollout" in said
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--rows", "10000", "--all-versions", *command])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "0.4.0 to 0.7.1" in said
    assert "critic.updates_per_rollout: 16 -> 2" in said


def test_a_program_of_somebodys_own_with_settings_of_its_own_is_a_fork() -> None:
    sizes = "data.train_batch_size=512 actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.use_dynamic_bsz=True"
    plan = planned(f"python3 -m somebodys.trainer.main_ppo {sizes} actor_rollout_ref.agent.enable_agent=True")
    assert plan.foreign == ("actor_rollout_ref.agent.enable_agent",)
    assert ("RLS116", "error") in codes(plan)
    assert planned(f"python3 -m mine.main_ppo {sizes}").foreign == ()


@pytest.mark.parametrize(
    ("command", "nearest", "unknown"),
    [
        # 0russwest0/Agent-R1 examples/hotpotqa/run_grpo.sh
        (
            "python3 -m agent_r1.trainer.main_agent_ppo algorithm.adv_estimator=grpo data.train_batch_size=32 "
            "actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
            "actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.agent.default_agent_flow=hotpotqa_agent critic.enable=False "
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 trainer.n_gpus_per_node=4",
            "verl 0.6.0",
            "actor_rollout_ref.rollout.agent.default_agent_flow",
        ),
        # ModalMinds/MM-EUREKA examples/scripts/train_mm_eureka_qwen_7b_single_node.sh
        (
            "python3 -m openrlhf.cli.train_ppo_ray --actor_num_nodes 1 --actor_num_gpus_per_node 8 --micro_train_batch_size 2 "
            "--train_batch_size 128 --rollout_batch_size 128 --n_samples_per_prompt 8 --advantage_estimator group_norm "
            "--freeze_prefix visual --enable_accuracy_filter",
            "OpenRLHF 0.10.1.post2",
            "--enable_accuracy_filter",
        ),
    ],
)
def test_a_fork_that_nobody_read_is_said_in_the_first_line(command: str, nearest: str, unknown: str) -> None:
    from rlstep_hooks.show.plan import plan_text

    plan = planned(command)
    text = plan_text(plan, None, explain=False, width=120, coloured=False)
    assert text.startswith(f"a fork, planned as {nearest} ")
    (finding,) = (finding for finding in plan.findings if finding.code == "RLS116")
    assert unknown in finding.observed
    assert "Where it runs, it is a fork" in finding.why
    assert "did you mean" not in text


def test_what_only_the_nearest_release_of_a_fork_refuses_is_a_warning() -> None:
    sizes = "data.train_batch_size=512 actor_rollout_ref.actor.ppo_mini_batch_size=256"
    plan = planned(f"python3 -m somebodys.trainer.main_ppo {sizes} actor_rollout_ref.agent.enable_agent=True")
    (finding,) = (finding for finding in plan.findings if finding.code == "RLS110")
    assert finding.severity == "warning"
    assert "what the fork does is not known" in finding.why
    (finding,) = (
        finding
        for finding in planned(f"python3 -m somebodys.trainer.main_ppo {sizes}").findings
        if finding.code == "RLS110"
    )
    assert finding.severity == "error"


@pytest.mark.parametrize("more", ["trainer.test_freq=False", "trainer.save_freq=False", "trainer.test_freq=0"])
def test_false_is_no_interval(more: str) -> None:
    assert codes(planned(f"{VERL} {more}")) == []


def test_a_horizon_a_few_ticks_off_is_information() -> None:
    """Search-R1's 1 004 of 1 005 rollouts: nothing that its user could change."""
    command = (
        "python3 -m verl.trainer.main_ppo data.train_batch_size=512 actor_rollout_ref.actor.ppo_mini_batch_size=256 "
        "actor_rollout_ref.rollout.n_agent=5 algorithm.adv_estimator=grpo trainer.total_training_steps=1005 "
        "actor_rollout_ref.actor.optim.warmup_style=cosine trainer.total_epochs=60"
    )
    [finding] = [finding for finding in planned(command).findings if finding.code == "RLS601"]
    assert (finding.severity, finding.fix) == ("info", "nothing, for so few ticks")


@pytest.mark.parametrize("version", ["1.11.0", "1.12.0", "1.13.0", "1.14.2", "1.15.0", "1.16.0"])
def test_the_last_six_releases_of_trl(version: str) -> None:
    """8 x 4 x 8 = 256 samples are 32 prompts; 10 000 rows fill 312 rollouts, each of which is passed over twice: 2 updates."""
    command = (
        f"{TRL} --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --num_iterations 2 --num_train_epochs 1"
    )
    schedule = planned(command, version).schedule
    assert schedule is not None
    assert (schedule.prompts_per_rollout, schedule.updates_per_rollout) == (32, 2)
    assert (schedule.rollouts, schedule.updates, schedule.rows_dropped_per_epoch) == (312, 624, 10_000 - 312 * 32)
    assert (schedule.old_logprob_source, schedule.lags) == ("at_rollout", (0, 1))


@pytest.mark.parametrize("version", ["0.10.2", "0.10.3", "0.10.4", "0.11.0", "0.11.1", "0.11.2"])
def test_the_last_six_releases_of_openrlhf(version: str) -> None:
    """1024 x 8 samples in updates of 128: 64 of them."""
    command = (
        f"{OPENRLHF} --rollout.batch_size 1024 --rollout.n_samples_per_prompt 8 --train.batch_size 128 --train.micro_batch_size 4 "
        "--train.max_epochs 1 --train.num_episodes 1 --algo.advantage.estimator group_norm"
    )
    schedule = planned(command, version).schedule
    assert schedule is not None
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout) == (8192, 64)


GONE, NEW = "actor_rollout_ref.actor.megatron.grad_offload", "ray_kwargs.ray_init.runtime_env.py_executable"
"""verl 0.9.1 dropped the one and brought the other; its examples of the weeks before have both."""


def test_settings_of_which_no_release_has_all_are_of_a_checkout_between_releases() -> None:
    plan = planned(f"{VERL} {GONE}=True {NEW}=null")
    assert plan.schedule is not None
    assert (plan.version, plan.foreign) == ("0.9.1", ())
    [finding] = [finding for finding in plan.findings if finding.code in ("RLS110", "RLS116")]
    assert (finding.code, finding.severity, finding.observed) == ("RLS116", "warning", GONE)
    assert f"{GONE} is in 0.4.0 to 0.9.0, {NEW} is in 0.9.1" in finding.why


def test_a_fork_may_have_settings_of_several_releases() -> None:
    plan = planned(f"{VERL} {GONE}=True {NEW}=null actor_rollout_ref.actor.made_up_here=1")
    assert plan.version == "0.9.1"
    assert [code for code in codes(plan) if code[0] in ("RLS110", "RLS116")] == [("RLS116", "error")]
    assert set(plan.foreign) == {GONE, "actor_rollout_ref.actor.made_up_here"}


def test_a_setting_of_another_release_alone_is_planned_for_that_release() -> None:
    assert planned(f"{VERL} {GONE}=True").version == "0.9.0"


GRPO_OF_VERL = """\
data: {train_batch_size: 64}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 32, ppo_micro_batch_size_per_gpu: 4}
  rollout: {n: 8, log_prob_micro_batch_size_per_gpu: 4}
algorithm: {adv_estimator: grpo}
"""
GRPO_OF_TRL = "{num_generations: 8, per_device_train_batch_size: 8}"


@pytest.mark.parametrize(
    ("file", "text", "program"),
    [
        ("run.yaml", GRPO_OF_VERL, "verl.trainer.main_ppo"),
        ("run.yaml", GRPO_OF_TRL, "trl grpo"),
        ("rloo.yaml", GRPO_OF_TRL, "trl rloo"),
        ("run.yaml", "{num_ppo_epochs: 4, per_device_train_batch_size: 8}", "a script with PPOTrainer"),
        ("run.yaml", "trainer: {policy_mini_batch_size: 64, train_batch_size: 128}", "main_base"),
        ("fully_async.yaml", "trainer: {policy_mini_batch_size: 64, train_batch_size: 128}", ""),
        ("run.yaml", "collector: {frames_per_batch: 2048}", "ppo_mujoco.py"),
        ("config_atari.yaml", "collector: {frames_per_batch: 4096}", ""),
    ],
)
def test_a_configuration_alone_says_which_program_is_assumed(
    file: str, text: str, program: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(text)
    plan = plan_launch([str(tmp_path / file)], Options(rows=10_000, world_size=8))
    notes = [note for note in plan.notes if "reads this file" in note.text]
    assert [note.text.partition(" reads ")[0] for note in notes] == [program] * bool(program)
    assert all(note.kind == "assumes" for note in notes)


def test_a_command_names_its_program(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(GRPO_OF_TRL)
    assert "reads this file" not in said(planned(f"trl grpo --config {tmp_path / 'run.yaml'}"))
    assert "reads this file" not in said(planned(VERL))
