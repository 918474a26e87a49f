"""What is compared of a run of verl's trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.record.cadence import WORDS
from rlstep_hooks.systems.engine.links import no, yes

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.links import Deployment, Link, LinkName

_SHARDED: tuple[Deployment, ...] = ("FSDP1", "FSDP2", "offload", "LoRA")
"""Deployments in which verl's own training workers train on two ranks (tests/systems/verl/test_engines.py); with FSDP2 in whole
runs too."""

LINKS: dict[LinkName, Link] = {
    "settings in force": yes(
        "of the optimizers: their type, betas, decay, epsilon, what else they step with, and the limit of the gradient norm, at each "
        "step; the precision of weights and forward, with FSDP; the order of the first rows of "
        "each pass, by `data.shuffle` and `data.seed`; the policy's samples in each mini-batch, by `shuffle` and "
        "`data_loader_seed`; that validations and checkpoints come by `trainer.test_freq` and `trainer.save_freq`, and a validation's "
        "rows and samples by its set and `val_kwargs.n`; the sampling that agent loops ask the engines for",
        "not others, which workers read themselves; of shuffled rows without a seed, or after a resume, only that they do not come "
        "as they stand; not the order of rows in fully_async_policy, nor with a sampler or data set of one's own",
        proved=("FSDP2",),
    ),
    "completions": yes(
        "against the entropies that are computed with old log-probs, in the synchronous trainers; copies among the samples of all "
        "trainers",
        "not with bypass_mode, truncated sampling, filter_groups, over_sample_rate, several turns, full_determinism, or rollouts "
        "that run ahead",
        often="compared",
    ),
    "completions on the way": yes(
        "bit for bit, from the refresh to the loss; the rows of agent loops against the turns that were sampled for them, with the "
        "prompt of each turn, and of the single-turn loop some prompts against the rows of the data set",
        "prompts in agent loops alone; not between the agent loop and the refresh; not whether an engine ends a completion early",
        proved=("FSDP2",),
    ),
    "rewards on the way": yes(
        "those that the estimator gets against those of the samples, and these against what the reward manager gave, at the last "
        "token; "
        "the text, the ground truth, the data source and the parts of extra_info that a reward function is asked about, with the "
        "managers naive and dapo; order within groups, and rows with their prompts",
        "not further arguments of a reward function, nor reward models, nor the rewards of a loop of one's own; no rewards of "
        "processes that do not write into the folder of the record",
        proved=("FSDP2",),
    ),
    "advantages": yes(
        "from the rewards, in float64: grpo with and without deviation, rloo, reinforce_plus_plus, its baseline, remax, opo, gpg, "
        "grpo_passk, gae with values and targets; the KL penalty in the rewards (a coefficient that adapts is taken as it came)",
        "not gdpo, optimal token baselines, use_pf_ppo or estimators of somebody's own",
        often="compared",
        proved=("FSDP2",),
    ),
    "advantages on the way": yes(
        "in the controller from the estimator to the end of the rollout, in the trainer from its data to each micro-batch; so are "
        "the critic's values and returns",
        often="compared",
        proved=("FSDP2",),
    ),
    "mask": yes(
        "through the first end; in agent loops the sampled tokens of each turn",
        "several turns not where a row begins with a prompt that no turn was asked for, "
        "with images, or with models behind whose turns verl takes tokens out (GLM, Gemma 4, DeepSeek); not what an agent loop of "
        "one's own leaves untrained; not with filters of tokens, ignore_eos, or a training loop of one's own on the V0 trainer",
        often="compared",
    ),
    "mask on the way": yes(
        "from old log-probs to the loss",
        "not where old log-probs are not computed again",
        often="compared",
        proved=("FSDP2",),
    ),
    "loss": yes(
        "vanilla, gspo, sapo, gpg, cispo, dro, with clip, aggregation, KL, entropy and importance weights, and the critic's with "
        "the clip of its values, in float64",
        "not clip_cov, kl_cov, dppo_tv, dppo_kl, geo_mean or losses of somebody's own",
        often="compared",
        proved=("FSDP2",),
    ),
    "backward": yes(
        "the factor that arrives at the loss", "not with a gradient scaler", often="compared", proved=("FSDP2",)
    ),
    "gradients cleared": yes("a probe before the first backward of an update", proved=_SHARDED),
    "gradients on the way": yes(
        "at the output of the model, against that of the loss's formula, and from the last backward pass of an update to its "
        "step, on one "
        "process from each pass on",
        "not in between, where FSDP reduces gradients of several processes; not with a gradient scaler",
        proved=_SHARDED,
    ),
    "reduction": yes(
        "what each trainer's backward passes gave against what its optimizer gets, of policy and critic, and the clip by the norm "
        "over all trainers",
        "not with Ulysses, where one of the ranks that share sequences keeps a record; FSDP1 together with LoRA was never trained here",
        often="whole",
        proved=_SHARDED,
    ),
    "gradient norm": yes(
        "of all gradients at the step, against clip_grad", "the part of one process", often="whole", proved=_SHARDED
    ),
    "optimizer step": yes(
        "SGD, Adam, AdamW and RMSprop of torch, on the part of the weights that a process holds",
        "not other optimizers",
        often="compared",
        proved=_SHARDED,
    ),
    "optimizer moments": yes("between a replayed step and the next", often="compared", proved=_SHARDED),
    "learning rate": yes("constant and cosine with warm-up", "not other numbers of cycles", proved=("FSDP2",)),
    "reference": yes(
        "a probe of its weights; that its log-probs come of forwards of its own; those before the first update, which are the "
        "policy's; two rows of each compared rollout, scored again by the reference alone, without adapters",
        "before the first update not its log-probs with adapters, or in another precision than the policy's",
    ),
    "reference on the way": yes(
        "its log-probs from its forward to the loss, bit for bit",
        "those in rewards as far as the trainer",
        often="compared",
    ),
    "sampler": yes(
        "the version behind each sample against the bound on its age, and in V1 and fully_async_policy against the sync before its "
        "prompt; the engine's log-probs where it gives them and the trainer computes its own, with the cause of a distance "
        "(temperature, truncation, precision, place); with vLLM what it is given and holds after each sync",
        "no version where hybrid_rollout lends engines; of the settings of its calls only temperature, top_p, top_k, min_p and "
        "penalties, with verl's own agent loops; not what another engine, or an adapter of its own, holds; of samples that are all "
        "older than the trainer's log-probs only a distance with such a cause",
    ),
    "weights between updates": yes("a probe between updates, and all weights in some cycles", "of the policy"),
    "replicas": yes(
        "the bits of all buffers, when training begins and around steps",
        "not weights, of which ranks hold shards",
        often="whole",
        proved=_SHARDED,
    ),
}

_ENGINE = yes(
    "what vLLM is given and holds after each sync", "not what another engine, or an adapter of its own, holds"
)

RULES: dict[str, Link] = {
    "RLS305": yes("from the refresh to the loss; those of the sampling in the rows of agent loops"),
    "RLS306": yes(
        "the tokens of each sample, from the refresh to the loss; the rows of agent loops against their turns; some prompts of the "
        "single-turn loop against the rows of the data set",
        "prompts in agent loops alone",
    ),
    "RLS310": yes("the ratio of each rollout that has advantages"),
    "RLS312": yes(
        "in the controller where they are computed, and in the trainer from its data to each micro-batch",
        "not in bypass mode, nor weights of whole sequences, or with a mean of 1, together with a rejection",
        "compared",
    ),
    "RLS402": yes(
        "the version behind each sample against the bound on its age, and in V1 and fully_async_policy against the sync before its "
        "prompt",
        "not where hybrid_rollout lends engines",
    ),
    "RLS403": yes(
        "the engine's log-probs where the configuration asks for them, by their mean and token by token",
        "with bypass_mode those of samples of the current weights alone, and without a cause; a cause is looked for "
        f"{WORDS['compared']}, not with fused kernels or sequence parallelism",
    ),
    "RLS423": yes(
        "once, when policy and critic have been loaded: the first rows of what a process holds of up to 16 tensors",
        "not FSDP1's flat parameters, nor the critic's head, nor what a resumed run begins with",
    ),
    "RLS404": yes(f"the policy's weights by a probe, and all of them {WORDS['whole']}"),
    "RLS406": yes("all updates, by the advantages of the rollouts"),
    "RLS407": yes("once, when training begins"),
    "RLS408": yes("layers that are frozen from the start, without LoRA; tensors without a gradient"),
    "RLS410": no("what agent loops ask the engines for is compared by RLS101"),
    "RLS411": yes("a probe of its weights at each refresh"),
    "RLS413": yes(
        "by the entropies that are computed with old log-probs, in the synchronous trainers",
        "not with bypass_mode, which computes none; not with filter_groups, over_sample_rate or trainers that run ahead, where what a "
        "completion contains decides whether it is trained; not with agent loops of several turns or full_determinism",
        "compared",
    ),
    "RLS314": yes(
        "two rows of one micro-batch of old log-probs and of two micro-batches that are trained, with their entropies, scored "
        "again one at a time; two rows of the critic's values",
        "on several trainers beside their own forwards; without images, fused kernels or sequence parallelism; of "
        "training not with dropout",
        "whole",
    ),
    "RLS315": yes(
        "two rows of one micro-batch that the reference scores, scored again one at a time, with adapters switched off",
        "on several trainers beside their own forwards; without images, fused kernels or sequence parallelism",
        "whole",
    ),
    "RLS414": yes("the first rollout of a run"),
    "RLS813": yes(
        "training's own backward pass from the output of the policy's layers to its embeddings, at one row of a rollout",
        "weights in float32, and embeddings that are trained, without packed rows (`use_remove_padding`), "
        "dropout, images, torch.compile, reentrant checkpoints, or tensor, context or sequence parallelism",
        "sloped",
    ),
    "RLS415": _ENGINE,
    "RLS416": _ENGINE,
    "RLS417": _ENGINE,
    "RLS422": yes("the blocks that requests of vLLM find filled"),
    "RLS505": yes("the advantages of each rollout"),
    "RLS508": yes(
        "the order for grpo, rloo, opo, gpg and reinforce_plus_plus_baseline, the sum for grpo and rloo",
        "for gae prompts alone",
    ),
    "RLS509": yes("rows by their fields `data_source`, `reward_model` and `extra_info`, in the controller"),
    "RLS513": yes("rows by their fields `data_source`, `reward_model` and `extra_info`, in the controller"),
    "RLS519": yes(
        "the samples of all trainers, when their old log-probs are computed; between two trainers the 256 completions of each with the "
        "smallest checksums",
        often="compared",
    ),
    "RLS520": yes(
        "the queues of the trainers of `trainer/ppo/v1` and of fully_async_policy",
        "the names of the latest 65 536 prompts that were taken are remembered",
    ),
    "RLS702": yes(
        "all weights and moments of each role, where the folder of records is that of the run that saved them",
        "not the state of random generators",
    ),
    "RLS703": yes(
        "the first rows of up to 16 tensors of each role, and of their moments, when a checkpoint has been made",
        "not with FSDP1; not the learning rate, the loader and random generators",
        proved=("FSDP2",),
    ),
    "RLS801": yes(
        "vanilla, gspo, sapo, gpg, cispo, dro, and the critic's with the clip of its values, in float64",
        "not clip_cov, kl_cov, dppo_tv, dppo_kl, geo_mean or losses of somebody's own; on several ranks the number of tokens of a "
        "mini-batch is RLS820's",
        "compared",
    ),
    "RLS820": yes(
        "the tokens of a mini-batch that losses of policy and critic are divided by with token-mean, against those of all trainers",
        "the samples of a mini-batch are RLS801's",
        often="compared",
    ),
    "RLS811": yes(
        "what each trainer's backward passes gave, and what it got of the reduction, of policy and critic, while the run goes on",
        "not with Ulysses, where one of the ranks that share sequences keeps a record; not what engines other than FSDP reduce; "
        "FSDP1 together with LoRA was never trained here",
        "whole",
    ),
    "RLS812": yes(
        "what the optimizer of each trainer uses, against what came of the reduction",
        "not with a gradient scaler",
        "whole",
    ),
    "RLS419": yes("the buffers", "not weights, which are shards", "whole"),
}
