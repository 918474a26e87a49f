"""OpenRLHF: `openrlhf.cli.train_ppo_ray` with dotted flags (0.10.2 and later) or flat ones, and `train_ppo` of 0.5.

What OpenRLHF calls a step is one rollout with its updates. Updates count samples over all processes. DeepSpeed counts micro-batches
through passes and rollouts and applies gradients at every `accumulation`-th, so what does not fill an update is carried into the next
rollout. Read in the wheels from 0.5 to 0.11.2; lines are those of 0.11.2 unless another release is named. Defaults:
cli/train_ppo_ray.py.
"""

from __future__ import annotations

from rlstep_hooks.planning import lags
from rlstep_hooks.systems.engine.declaration import Demand, Depends, Entry, Formula, Note, System, text
from rlstep_hooks.systems.engine.remarks import other_shapes
from rlstep_hooks.systems.openrlhf.launch import engine_faults, release_of_flags, started_processes
from rlstep_hooks.systems.openrlhf.links import LINKS, RULES
from rlstep_hooks.systems.openrlhf.names import KEYS
from rlstep_hooks.systems.openrlhf.refusals import CHECKS, flag_of
from rlstep_hooks.systems.openrlhf.releases import FIRST, FIRST_UNSUPPORTED
from rlstep_hooks.systems.openrlhf.rollouts import pieces_of_run, shares
from rlstep_hooks.systems.openrlhf.settings import ALGORITHMS, SETTINGS, SHOWN, bounds_of_correction, flag_name

_SAMPLES = (
    "{home} trainer/{'ray/ppo_actor.py prepare_datasets' if ranks_generate else 'ppo_utils/samples_generator.py' "
    "if openrlhf >= (0, 9, 9) else 'ppo_utils/experience_maker.py'}"
)
_LOADER = "{home} trainer/{'ppo_utils/samples_generator.py' if openrlhf >= (0, 11) else 'ppo_trainer.py fit'}"
_ACCUMULATION = "{home} utils/deepspeed/deepspeed.py setup_distributed, DeepSpeed runtime/config.py"
_CUT_BY_TOKENS = "unknown('micro-batches are cut by token counts')"


def _updates(role: str, accumulation: str, processes: str, frozen: str, kept: str) -> dict[str, str]:
    """The formulas of one role: how its updates cut a rollout.

    Args:
        role: "" for the policy, "critic." for the critic.
        accumulation: Name of its accumulation steps.
        processes: The data-parallel processes of the role, W.
        frozen: Rollouts at the beginning that do not train it.
        kept: Rollouts at the beginning whose samples are trained later.
    """
    # `DataLoader(drop_last=True)` leaves out what does not fill a micro-batch (trainer/ray/ppo_actor.py:162-169).
    each, epochs = f"{processes} // train.micro_batch_size", "train.max_epochs"
    name = role.replace(".", "_")
    per_pass, in_pass = f"{name}microbatches_per_pass", f"{name}updates_per_pass"
    of_run = (
        f"samples_per_rollout, samples_of_last_rollout, rollouts, rollouts_per_epoch, {frozen}, {kept}, {processes}"
    )
    return {
        accumulation: f"train.batch_size * copies // train.micro_batch_size // {name or 'actor_'}gpus",
        per_pass: f"samples_per_rollout // {each}",
        f"{role}samples_per_microbatch": f"{_CUT_BY_TOKENS} if dynamic else train.micro_batch_size * {processes}",
        f"{role}microbatches_per_rollout": f"{_CUT_BY_TOKENS} if dynamic else {epochs} * {per_pass}",
        # Where token counts cut micro-batches: B*n // T updates in a pass, or fewer where a rollout does not fill them. What is left
        # of the buffer is dropped (trainer/ppo_utils/replay_buffer.py:86-116).
        f"{name}share": f"train.batch_size // {processes}",
        "planned": "floor(rollout.batch_size * rollout.n_samples_per_prompt / train.batch_size)",
        in_pass: f"min(planned, floor(floor(samples_per_rollout / {processes}) / floor(train.batch_size / {processes})))",
        f"{role}minibatches": f"repeated(({role}samples_per_update,), {in_pass} if dynamic "
        f"else {per_pass} // {accumulation} if {per_pass} % {accumulation} == 0 else 0)",
        f"{role}updates": f"{epochs} * pieces_of_run({of_run}, {name}share, planned) if dynamic "
        f"else {epochs} * pieces_of_run({of_run}, train.micro_batch_size, None) // {accumulation}",
    }


SYSTEM = System(
    name="openrlhf",
    title="OpenRLHF",
    version="0.11.2",
    releases=(str(FIRST), str(FIRST_UNSUPPORTED)),
    package="openrlhf",
    commits="openrlhf/commits.json",
    checkout="rlstep_hooks.systems.openrlhf.checkout.beside:beside",
    keys=KEYS,
    recognised=(
        Entry(
            "openrlhf",
            programs=(
                "module:openrlhf.cli.train_ppo_ray",
                "module:openrlhf.cli.train_ppo",
                "script:train_ppo_ray.py",
                "script:train_ppo.py",
            ),
        ),
    ),
    trains=("openrlhf.*",),
    rows_from=("data.prompt_dataset", "prompt_data"),
    settings={**SETTINGS, "pretrain_data": text(where="given(pretrain_data)")},
    reads_as=release_of_flags,
    shown=SHOWN,
    resolved={
        f"{role}.{name}": f"{role}.{name} if started is None else {count}"
        for role in ("actor", "critic")
        for name, count in (("num_nodes", "1"), ("num_gpus_per_node", "started * copies"))
    },
    functions={
        **lags.FUNCTIONS,
        "algorithm_named": lambda estimator: ALGORITHMS.get(estimator, estimator),
        "engine_faults": engine_faults,
        "started_processes": started_processes,
        "flag_name": flag_name,
        "pieces_of_run": pieces_of_run,
        "shares": shares,
        "bounds": bounds_of_correction,
    },
    let={
        # The release of OpenRLHF, for forks that have releases of their own.
        "openrlhf": "release",
        "home": "'OpenRLHF ' + version",
        "algorithm": "algorithm_named(algo.advantage.estimator)",
        "dynamic": "train.dynamic_batch_enable",
        "filtered": "algo.dynamic_filtering_enable",
        "asynchronous": "train.async_enable",
        # Up to 0.7.0 each trainer draws `rollout_batch_size // processes` prompts of its own and clears its buffer after every rollout
        # (trainer/ray/ppo_actor.py 0.6.4:196-217 and :749, 0.7.0:203-227 and :827); later one controller does.
        "ranks_generate": "openrlhf < (0, 7, 1)",
        # Processes that share the same samples.
        "copies": "ds.ring_attn_size * ds.tensor_parallel_size",
        "started": "started_processes(launch)",
        "actor_gpus": "actor.num_nodes * actor.num_gpus_per_node if started is None else started * copies",
        "critic_gpus": "critic.num_nodes * critic.num_gpus_per_node if started is None else started * copies",
        "world_size": "actor_gpus // copies",
        "critic.world_size": "critic_gpus // copies",
        "critic": "algo.advantage.estimator == 'gae'",
        # Prompts of a rollout. 0.8.1 to 0.9.0: the loader gives `vllm_generate_batch_size` of them, all of one rollout
        # (trainer/ppo_trainer.py 0.9.0:318). 0.10 and later generate as many and train at most `rollout_batch_size` of them at a time
        # (trainer/ppo_utils/samples_generator.py:89-138); 0.9.1 to 0.9.10 do not read the setting.
        "generated": "rollout.vllm_generate_batch_size or rollout.batch_size",
        "prompts": "floor(rollout.batch_size / world_size) * world_size if ranks_generate "
        "else generated if openrlhf >= (0, 8, 1) and openrlhf < (0, 9, 1) and not filtered "
        "else min(generated, rollout.batch_size) if openrlhf >= (0, 10) else rollout.batch_size",
        "prompts_per_rollout": "prompts",
        "samples_per_prompt": "rollout.n_samples_per_prompt",
        "reuse_epochs": "train.max_epochs",
        "rows": "min(rows, data.max_samples)",
        # 0.10.0 to 0.11.0: with samples left in the buffer when the loader is exhausted, it is started anew within the episode
        # (trainer/ppo_utils/samples_generator.py 0.11.0:96, 0.11.1:96).
        "left_over": "rows // generated * generated % prompts + rows % generated - prompts",
        # `PolicyLoss.forward` (models/loss.py 0.11.2:183-243, 0.11.0:172-219): weights of a token, or a ratio to the engine with gspo.
        "level": "algo.advantage.is_correction_level if openrlhf >= (0, 11, 2) "
        "else 'token' if algo.advantage.is_correction_enable else 'off'",
        "kind": "algo.advantage.is_correction_type if openrlhf < (0, 11, 2) "
        "else algo.advantage.is_correction_mode + ' by ' + level + ' ' + algo.advantage.is_correction_gating",
        "correction": "'' if not asynchronous and level == 'off' else 'none' if level == 'off' "
        "else 'the ratio of a sequence, taken to the log-probs of the engine' if actor.policy_loss_type == 'gspo' "
        "else 'token importance weights, ' + kind + ' ' + bounds(algo.advantage.is_correction_threshold, openrlhf < (0, 9, 1))",
        "correction_biased": "'rollout.top_p = ' + quoted(decimal(rollout.top_p)) "
        "if rollout.top_p < 1 and level != 'off' else ''",
        "repeats": "openrlhf >= (0, 10) and openrlhf < (0, 11, 1) and generated > rollout.batch_size and left_over > 0",
        # The rows that do not fill a rollout: 0.9.0 and before drop them in the loader, 0.9.1 to 0.9.8 after drawing them
        # (experience_maker.py 0.9.1:311). From 0.9.9 on they are generated, and the asynchronous trainer trains them; the synchronous
        # one throws them away until 0.11 (trainer/ppo_trainer.py 0.10.4:322-323, 0.11.0:322-325).
        "trains_rest": "not ranks_generate and not filtered and not repeats "
        "and (openrlhf >= (0, 9, 9) if asynchronous else openrlhf >= (0, 11))",
        "loader": "'keeps' if trains_rest else 'drops'",
        "samples_of_last_rollout": "rows % prompts * rollout.n_samples_per_prompt if known(rows) and trains_rest else 0",
        "rows_dropped_per_epoch": "rows - rollouts_per_epoch * prompts if ranks_generate "
        "else None if filtered else 0 if trains_rest else rows % prompts",
        "rows_bound": "'data_dependent' if filtered else 'exact'",
        # 0.7 and later clear the policy's buffer only when the policy is trained (trainer/ray/ppo_actor.py 0.7.5:459).
        "kept": "0 if ranks_generate else frozen_rollouts",
        "frozen_samples_kept": "kept > 0",
        "none": "0",
        **_updates("critic.", "critic_accumulation", "critic.world_size", "none", "none"),
        **_updates("", "accumulation", "world_size", "frozen_rollouts", "kept"),
        "critic.samples_per_update": "floor(train.batch_size / critic.world_size) * critic.world_size if dynamic "
        "else critic_accumulation * train.micro_batch_size * critic.world_size",
        "critic.microbatches_per_update": f"{_CUT_BY_TOKENS} if dynamic else critic_accumulation",
        "critic.updates_per_rollout": "train.max_epochs * critic_updates_per_pass if dynamic "
        "else train.max_epochs * critic_microbatches_per_pass / critic_accumulation",
        "critic.samples_dropped_per_rollout": "samples_per_rollout - (critic_updates_per_pass * critic.samples_per_update if dynamic "
        "else critic_microbatches_per_pass * train.micro_batch_size * critic.world_size)",
        "critic.lags": "()",
        "critic.ratio_one_updates": "()",
        "critic.syncs": "syncs",
        # Rollouts may begin at every micro-batch of a window that their numbers of micro-batches reach.
        "last_microbatches": "train.max_epochs * (samples_of_last_rollout // world_size // train.micro_batch_size)",
        "longest": "train.max_epochs * ((kept + 1) * samples_per_rollout // world_size // train.micro_batch_size)",
        "begins": "accumulation - gcd(microbatches_per_rollout, last_microbatches, longest, accumulation)",
        "lags": "range(max(updates_per_rollout, 1)) if dynamic "
        "else range(max((begins + longest - 1) // accumulation, 0) + 1)",
        "ratio_one_updates": "((1,) if updates_per_rollout else ()) if dynamic "
        "else ratio_one_updates(lags_of_updates(microbatches_per_rollout, accumulation, 1, train.max_epochs), 'recompute')",
        "remainder": "'drop' if dynamic else 'carry'",
        # After each rollout, and none before the first: the engine loads the same weights (trainer/ppo_trainer.py:246-248). 0.9.1 and
        # later sync after every rollout, before only after those that train the policy (0.9.0:155-157, 0.9.1:130).
        "syncs": "unknown('the trainers generate themselves: there is no engine') if not vllm.num_engines and ranks_generate "
        "else unknown('OpenRLHF before 0.9.1 syncs no weights after a rollout that trains the critic only') "
        "if frozen_rollouts and openrlhf < (0, 9, 1) else 'after_updates'",
        "reference_source": "'at_rollout' if algo.kl.init_coef > 0 else 'none'",
        # For notes: the samples of all passes together, since accumulation does not stop between passes.
        "trained": "train.max_epochs * (samples_per_rollout - samples_dropped_per_rollout)",
        "trained_last": "train.max_epochs * samples_of_last_rollout",
        "last_dropped": "samples_of_last_rollout % samples_per_update",
    },
    formulas=(
        Formula("samples_per_rollout", "prompts * rollout.n_samples_per_prompt", _SAMPLES),
        Formula(
            "samples_per_update",
            "floor(train.batch_size / world_size) * world_size",
            _ACCUMULATION,
            where="dynamic",
        ),
        Formula("samples_per_update", "train.batch_size", _ACCUMULATION),
        Formula(
            "updates_per_rollout",
            "train.max_epochs * updates_per_pass",
            "{home} trainer/ppo_utils/replay_buffer.py setup_dynamic_batch",
            where="dynamic",
        ),
        Formula(
            "updates_per_rollout",
            "train.max_epochs * floor(samples_per_rollout / (world_size * train.micro_batch_size)) / accumulation",
            "{home} trainer/{'ppo_trainer' if ranks_generate else 'ray/ppo_actor'}.py ppo_train; DeepSpeed runtime/engine.py "
            "is_gradient_accumulation_boundary",
        ),
        Formula("microbatches_per_update", _CUT_BY_TOKENS, _ACCUMULATION, where="dynamic"),
        Formula("microbatches_per_update", "train.batch_size / (train.micro_batch_size * world_size)", _ACCUMULATION),
        Formula(
            "samples_dropped_per_rollout",
            "samples_per_rollout - updates_per_pass * samples_per_update",
            "{home} trainer/ray/ppo_actor.py ppo_train: DataLoader(drop_last=True)",
            where="dynamic",
        ),
        Formula(
            "samples_dropped_per_rollout",
            "samples_per_rollout - microbatches_per_pass * train.micro_batch_size * world_size",
            "{home} trainer/ray/ppo_actor.py ppo_train: DataLoader(drop_last=True)",
        ),
        # Each process has a share of the rows, and drops what does not fill a rollout of its own.
        Formula(
            "rollouts_per_epoch",
            "floor(floor(rows / world_size) * world_size / prompts_per_rollout)",
            _LOADER,
            where="ranks_generate",
        ),
        Formula(
            "rollouts_per_epoch",
            "unknown('filtering by reward takes prompts from the same rows: at most ' "
            "+ quoted(ceil(rows / prompts) * train.num_episodes) + ' rollouts')",
            _LOADER,
            where="filtered and known(rows)",
        ),
        Formula(
            "rollouts_per_epoch",
            "unknown(quoted(left_over) + ' prompts are left in the buffer when the rows are used up; ' + home "
            "+ ' then begins the rows anew within the episode, which never ends')",
            _LOADER,
            where="repeats",
        ),
        Formula("rollouts_per_epoch", "ceil(rows / prompts_per_rollout)", _LOADER, where="trains_rest"),
        Formula("rollouts_per_epoch", "floor(rows / prompts_per_rollout)", _LOADER),
        # 0.8.0 and before: a sampler with the episode's number as its epoch; later the loader shuffles in a process without ranks.
        Formula("rows_reshuffled", "True", "{home} utils/deepspeed/deepspeed.py setup_dataloader (shuffle=True)"),
        Formula("rollouts", "rollouts_per_epoch * train.num_episodes", _LOADER),
        Formula("old_logprob_source", "'recompute'", "{home} trainer/ppo_utils/experience_maker.py make_experience"),
        # Evaluated from left to right (trainer/ppo_trainer.py:72-78).
        Formula(
            "lr_horizon",
            "floor(rows * rollout.n_samples_per_prompt / train.batch_size) * train.num_episodes * train.max_epochs",
            "{home} trainer/{'ray/ppo_actor.py' if ranks_generate else 'ppo_trainer.py'}: max_steps",
        ),
        # 0.9.1 and later compare a step that starts at 0 with the freezing steps (trainer/ppo_trainer.py 0.9.0:424 and 0.9.1:150).
        Formula(
            "frozen_rollouts",
            "max(critic.freezing_steps + 1, 0) if openrlhf >= (0, 9, 1) else max(critic.freezing_steps, 0)",
            "{home} trainer/ppo_trainer.py ppo_train: global_steps > freezing steps, from {0 if openrlhf >= (0, 9, 1) else 1} on",
        ),
        # A token of the queue is given back when the trainer takes a rollout, so generation is `async_queue_size` rollouts ahead
        # (trainer/ppo_trainer_async.py:111 and :230). What is left of a larger generation waits in a buffer for some more.
        Formula(
            "max_age",
            "0 if not asynchronous else train.async_queue_size if generated <= rollout.batch_size "
            "else train.async_queue_size + ceil((generated - gcd(generated, rollout.batch_size)) / rollout.batch_size)",
            "{home + ' trainer/ppo_trainer_async.py:111,230 rollout_slots' if asynchronous else 'no queue'}",
        ),
    ),
    depends=(
        Depends(
            on="filtered",
            says="algo.dynamic_filtering: prompts that a filter by reward throws away are replaced by others of the same rows",
            counts=("rollouts_per_epoch", "rollouts"),
            source=_LOADER,
        ),
    ),
    checks=(
        Demand(
            "not given(pretrain_data)",
            "pretrain_data adds updates on pre-training text, which are not planned",
            about="pretrain_data",
        ),
        *CHECKS,
    ),
    notes=(
        other_shapes("rollout.micro_batch_size", "train.micro_batch_size", "not dynamic and rollout.micro_batch_size"),
        Note(
            "unit",
            f"{flag_of('rollout.batch_size')} counts prompts, {flag_of('train.batch_size')} counts samples over all processes",
        ),
        # trainer/ppo_utils/samples_generator.py and ppo_trainer.py fit; before 0.11 fit breaks off at an exhausted loader.
        Note(
            "drops",
            "filtering drops prompts and takes others from the same rows; where the rows are used up before a rollout is full, "
            "{'the samples accepted so far are a smaller rollout, and fewer than an update of them make no update of their own' "
            "if openrlhf >= (0, 11) or asynchronous and openrlhf >= (0, 9, 9) else 'the samples accepted so far are thrown away'}: "
            "an episode can make no update at all",
            "filtered",
        ),
        Note(
            "carries",
            "{trained} samples of a rollout are {updates_per_rollout} updates of {samples_per_update}: gradients that are left over "
            "are applied in the next rollout, to new weights; those left at the end of the run are never applied",
            "not dynamic and trained % samples_per_update",
        ),
        Note(
            "carries",
            "the last rollout of an episode has {samples_of_last_rollout} samples: {trained_last % samples_per_update} of "
            "{samples_per_update} wait for the next episode's first update, or are never applied",
            "not dynamic and trained % samples_per_update == 0 and trained_last % samples_per_update",
        ),
        Note(
            "drops",
            "{samples_dropped_per_rollout} samples of each rollout do not fill a micro-batch or an update",
            "samples_dropped_per_rollout",
        ),
        # deviations.py `openrlhf-dynamic-batch-drops-the-rest`.
        Note(
            "drops",
            "{last_dropped} of {samples_of_last_rollout} samples of an episode's last rollout do not fill an update of "
            "{samples_per_update}: with dynamic batches they are never trained",
            "dynamic and last_dropped",
        ),
        Note(
            "drops",
            "with dynamic batches samples of a smaller rollout that do not fill an update of {samples_per_update} are never trained",
            "dynamic and filtered",
        ),
        # 0.9.9 to 0.10.4: the synchronous trainer generates the smaller rollout and does not train it.
        Note(
            "drops",
            "{rows_dropped_per_epoch} rows of each episode do not fill a rollout and are dropped"
            "{' after they were generated' if openrlhf >= (0, 9, 9) and openrlhf < (0, 11) else ''}",
            "rows_dropped_per_epoch",
        ),
        Note(
            "drops",
            "each of {world_size} processes draws whole prompts: {prompts} of {rollout.batch_size}",
            "prompts < rollout.batch_size and ranks_generate",
        ),
        # deviations.py `openrlhf-dynamic-batch-keeps-the-last-micro-batch`.
        Note(
            "drops",
            "with dynamic batches and ZeRO-1 or 2, DeepSpeed from 0.17.6 on makes an update of the gradients of its last micro-batch "
            "alone; ZeRO-3 adds up those of all",
            "dynamic",
        ),
        Note(
            "shrinks",
            f"{flag_of('rollout.vllm_generate_batch_size')} = {{generated}} is below {flag_of('rollout.batch_size')} = "
            "{rollout.batch_size}: a rollout has {prompts} prompts",
            "prompts < rollout.batch_size and not ranks_generate",
        ),
        Note(
            "grows",
            f"a rollout has all {{generated}} prompts of {flag_of('rollout.vllm_generate_batch_size')}, not {{rollout.batch_size}}",
            "prompts > rollout.batch_size",
        ),
        Note(
            "grows",
            "{frozen_rollouts} rollouts are frozen, and their samples stay in the buffer: the first rollout after them is trained "
            "together with them, {(frozen_rollouts + 1) * samples_per_rollout} samples at once",
            "frozen_samples_kept",
        ),
        Note(
            "assumes",
            f"{flag_of('vllm.num_engines')} is not given: without an engine there is nothing to generate with",
            "not vllm.num_engines and not ranks_generate",
        ),
    ),
    facts={
        "more_updates": "'train.max_epochs above 1, or train.batch_size below the samples of a rollout,'",
        "lr_constant": "starts(actor.lr_scheduler, 'constant')",
        "minibatch_unit": "'samples'",
        "nominal_updates_per_rollout": "train.max_epochs * samples_per_rollout / train.batch_size",
        "lr_warmup": "ceil(lr_horizon * actor.lr_warmup_ratio)",
        "save_every": "ckpt.save_steps if ckpt.save_steps > 0 else None",
        "eval_every": "eval.steps if eval.steps > 0 else None",
        # With dynamic batches each backward pass is at a boundary of the engine's (deepspeed.py:453); a note says what that loses.
        "release_faults": "engine_faults(launch, 1 if dynamic else accumulation)",
        "correct_by": "'--algo.advantage.is_correction_level token' if openrlhf >= (0, 11, 2) "
        "else '--algo.advantage.is_correction_enable' if openrlhf >= (0, 10, 2) else '--enable_vllm_is_correction'",
    },
    live="rlstep_hooks.systems.openrlhf.plan:plan_live",
    writes="rlstep_hooks.systems.openrlhf.launch:write",
    deviations="rlstep_hooks.systems.openrlhf.deviations:DEVIATIONS",
    knobs={
        "learning_rate": "actor.adam.lr",
        "rate_schedule": "actor.lr_scheduler",
        "warmup": "actor.lr_warmup_ratio",
        "gradient_limit": "actor.max_norm",
        "kl_coefficient": "algo.kl.init_coef",
        "clip": "actor.eps_clip_low_high",
        "passes": "train.max_epochs",
        "updates": "train.batch_size",
        "group": "rollout.n_samples_per_prompt",
        "temperature": "rollout.temperature",
        "entropy_bonus": "actor.entropy_coef",
        "length": "train.num_episodes",
        "age": "train.async_queue_size",
        "correction": "algo.advantage.is_correction_threshold",
    },
    attaches_by="`rlstep run -- <command>`, or `RLSTEP_DIR` and `RAY_RUNTIME_ENV_HOOK=rlstep_hooks.openrlhf.runtime_env_hook`.",
    rehearsed_by="rlstep_hooks.systems.openrlhf.rehearse:FRAMEWORK",
    # 0.7 and later: imported by the driver before it starts Ray.
    ray_job={"RAY_RUNTIME_ENV_HOOK": "rlstep_hooks.openrlhf.runtime_env_hook"},
    on_import={
        "openrlhf": "rlstep_hooks.systems.openrlhf.observe.ray_hooks:imported",
    },
    observed_releases=("0.11", str(FIRST_UNSUPPORTED)),
    trained_releases=("0.11.2",),
    observes=(
        "rollouts with the policy version and the settings that sampled them",
        "prompts, labels and rewards, up to the advantages",
        "what samples hold, from the engine and the models to the trainer's buffer",
        "refreshes of old log-probs",
        "micro-batches",
        "updates of policy and critic",
        "losses of policy and critic, and gradients on their way to the optimizer",
        "settings of the controller, the trainers and their optimizers",
        "learning rate",
        "syncs, at the trainer and at the engine",
        "a checksum of the reference and of a reward model",
        "checkpoints on resume",
    ),
    proved_in="one process of each role (ZeRO-2)",
    links=LINKS,
    rules=RULES,
    does_not_observe=(
        "weights that colocated engines take through CUDA IPC",
        "engines, references and reward models on other machines than the controller",
        "how rewards are computed",
    ),
)
