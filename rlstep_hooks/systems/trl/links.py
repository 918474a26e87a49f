"""What is compared of a run of TRL's GRPOTrainer and RLOOTrainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.record.cadence import ALL_OF_FIRST, ONE_OF, PARTS, READ_WHOLE, WORDS
from rlstep_hooks.systems.engine.links import limited, yes

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.links import Deployment, Link, LinkName

OF_UPDATES: dict[LinkName, Link] = {
    "backward": yes(
        "the factor that arrives at the loss",
        "not with a gradient scaler, whose factor is its own",
        often="compared",
    ),
    "gradients on the way": yes(
        "eight tensors an update, from autograd to the step; among several processes and with FSDP, from the last backward pass to the "
        "step",
        "not with a scaler or DeepSpeed",
        often="whole",
    ),
    "reduction": yes(
        "of up to 32 tensors an update: what each rank gave, what it got, and what its optimizer uses, joined from all records",
        "not what tensor, context or sequence parallelism adds",
        often="whole",
    ),
    "gradient norm": yes(
        "of all gradients at the step, against max_grad_norm; among several processes, of a model of more than "
        f"{READ_WHOLE // 10**6} million numbers, from the second to the {ALL_OF_FIRST}th cycle in one update of {PARTS}, and in the "
        "others what the clip returned times what followed gradients were multiplied by",
        "with sharded parameters, only one process's part",
        often="whole",
    ),
    "optimizer step": yes(
        "SGD, Adam, AdamW and RMSprop of torch, replayed in float64",
        "not other optimizers; of DeepSpeed's the parts in float32 that this process steps",
        often="compared",
    ),
    "optimizer moments": yes("between a replayed step and the next", often="compared"),
    "learning rate": yes(
        "of GRPOTrainer and RLOOTrainer, each schedule of transformers as configured, at the number of updates made; of others, "
        "constant, linear and cosine as the scheduler was built",
        "not schedules that a script makes, nor those that follow a metric",
        in_every_run=True,
    ),
}
"""The links from the loss to the weights, which are the same in every trainer that inherits these from TRL's."""

_USUAL: tuple[Deployment, ...] = ("DDP", "LoRA")
_ZERO: tuple[Deployment, ...] = ("ZeRO-0", "ZeRO-1", "ZeRO-2", "ZeRO-3", "offload")
_SPREAD: tuple[Deployment, ...] = (*_USUAL, *_ZERO, "FSDP2")
_CORPUS: tuple[Deployment, ...] = ("DDP", "FSDP2", "ZeRO-2", "ZeRO-3")
"""Where the whole corpus of faults is trained on two ranks (docs/ranks.md)."""

LINKS: dict[LinkName, Link] = {
    **OF_UPDATES,
    "gradients on the way": msgspec.structs.replace(OF_UPDATES["gradients on the way"], proved=(*_USUAL, "FSDP2")),
    "reduction": msgspec.structs.replace(OF_UPDATES["reduction"], proved=(*_SPREAD, "FSDP1")),
    **{
        name: msgspec.structs.replace(OF_UPDATES[name], proved=_SPREAD)
        for name in ("backward", "gradient norm", "optimizer step", "optimizer moments", "learning rate")
    },
    "settings in force": yes(
        "what trainer and optimizer compute with, when training begins and at each rollout",
        "of an optimizer that you build yourself, only its changes",
        proved=_SPREAD,
    ),
    "completions": yes(
        "against the policy's own distributions and each other (0.20 and later); the loss's log-probs against those of generate",
        "not truncated sampling, several turns, or dropout; an engine's log-probs where it gives them",
        proved=_SPREAD,
    ),
    "completions on the way": yes(
        "what generate or vLLM was asked for and gave, in several turns too, and what tools were called with and returned (1.16, one "
        "process); bit for bit from the rollout to the loss",
        "with vLLM before 1.16 or on several processes, only from the rollout on",
        often="carried",
        proved=_SPREAD,
    ),
    "rewards on the way": yes(
        "what each reward function gave, coroutines too, and which completions, prompts and columns it got (0.20 and later)",
        "not reward models, nor the texts of completions of several messages before 1.16",
        often="compared",
        proved=_SPREAD,
        in_every_run=True,
    ),
    "advantages": yes(
        "from the rewards, in float64: group's and rollout's deviation, leave-one-out, several reward functions (0.20 and later)",
        "before 0.20 rewards are not seen, and before 1.16 not where a completion has no reward at all; "
        "on several processes not RLOO with a KL penalty where they share a group or "
        "normalise advantages together; nor trainers with advantages of their own",
        often="compared",
        proved=_SPREAD,
        in_every_run=True,
    ),
    "advantages on the way": yes(
        "bit for bit, from the rollout to the loss", often="carried", proved=_SPREAD, in_every_run=True
    ),
    "mask": yes(
        "through the first end; truncated completions as configured; with tools, environments and rollout_func against what generate "
        "or vLLM gave in each turn (1.16)",
        "not several turns among several processes, with continuous batching or before 1.16, nor other ends in one turn, nor what a "
        "rollout_func leaves untrained",
        often="compared",
        proved=_SPREAD,
        in_every_run=True,
    ),
    "mask on the way": yes(
        "bit for bit, from the rollout to the loss", often="carried", proved=_SPREAD, in_every_run=True
    ),
    "loss": yes(
        "the documented types, on the same log-probs",
        "not inside a liger loss, nor types of somebody's own",
        often="compared",
        proved=_SPREAD,
    ),
    "gradients cleared": yes(
        "a probe before the first micro-batch of each update",
        "not with DeepSpeed, whose gradients of all updates are those of their micro-batches",
        often="probed",
        proved=(*_USUAL, "FSDP2"),
    ),
    "reference": yes(
        "a probe of its weights, also against writes that were undone; with sync_ref_model the mix of each sync",
        "where it is sharded, this process's part; not a reference that is the policy with its adapters off",
        often="compared",
        proved=_CORPUS,
    ),
    "reference on the way": yes(
        "bit for bit, from the rollout to the loss",
        "not RLOO's, which enter its rewards, nor those computed in the loss",
        often="compared",
        proved=_CORPUS,
    ),
    "sampler": yes(
        "settings at the call of generate; with vLLM its log-probs, and in colocate mode what it is given "
        "and what it holds after each sync; of a vLLM server too that was started with RLSTEP_ENGINES (1.16)",
        "not what other servers do with the weights",
    ),
    "weights between updates": yes(
        "a probe, between updates and while samples are generated; of DeepSpeed the weights that it steps and those of the model",
        often="probed",
        proved=(*_USUAL, "FSDP2", "ZeRO-2", "ZeRO-3"),
    ),
    "replicas": yes(
        "the bits of all weights and buffers that each rank holds whole, when training begins and around steps; of references and "
        f"frozen weights when training begins; of a model of more than {READ_WHOLE // 10**6} million numbers one part of {PARTS} of "
        f"each tensor around the steps of the second to the {ALL_OF_FIRST}th cycle",
        "not shards, but for what FSDP cuts: the weights of each rank right before",
        often="whole",
        proved=_SPREAD,
    ),
}

_LIGER = limited("a liger loss and other fused losses compute log-probs inside a kernel, so it is not evaluated")
_TOKENS = "not where nobody knows which tokens get a gradient: with a loss of one's own, or an off-policy mask of an engine's log-probs"
_PROBED = limited("of DeepSpeed's weights, those in float32 that this process steps", "probed")
_ENGINE = yes(
    "vLLM in the trainer's process, and a vLLM server that was started with RLSTEP_ENGINES (1.16); also what is gathered of all "
    "processes' parts",
    "not what other servers hold",
    proved=_CORPUS,
)

RULES: dict[str, Link] = {
    "RLS120": yes("the generators of torch and numpy, when training begins"),
    "RLS501": yes(
        "whether the rows of each group have one prompt",
        "of an evaluation on one process alone, where broken groups are a warning",
    ),
    "RLS504": yes("the batches of each evaluation"),
    "RLS505": yes("the advantages of each rollout", "what the loss itself leaves out is seen in one process"),
    "RLS509": yes("rows by their prompts (0.18 and later)", "up to 4 096 different prompts are counted"),
    "RLS514": yes("the state of the policy's random generator when a rollout begins", "not samples", "compared"),
    "RLS519": yes(
        "completions, at the first update on a rollout, also those of several processes",
        "of several processes in the first 64 compared rollouts, and not where they share sequences",
        often="compared",
    ),
    "RLS306": yes(
        "the tokens of each sample, bit for bit; of prompts, of what generate or vLLM was asked for and gave, and of tools: "
        f"{WORDS['compared']}; then also two prompts against their rows (1.16, without images, environments and rollout_func)",
        "with vLLM before 1.16 or on several processes, only from the rollout on",
        "carried",
    ),
    "RLS313": yes(
        "the log-probs of the loss against those of transformers' generate, by their mean and token by token",
        "with an engine RLS403 compares the engine's, where the framework asks for them",
        "whole",
    ),
    "RLS314": yes(
        "two rows of one micro-batch, scored again one at a time, and the entropies that came with their log-probs; of a model of more "
        f"than {READ_WHOLE // 10**6} million numbers one row from the second cycle on",
        "without FSDP1, dropout, images or torch.compile; with FSDP2 and ZeRO-3 beside the forward of training; not with tensor, "
        "context or sequence parallelism, a head that is no plain matrix, or capped or scaled logits",
        "whole",
    ),
    "RLS315": yes(
        "two rows of one micro-batch, in RLOO of the rollout, scored again one at a time by the reference, also by the policy with its "
        "adapters switched off",
        "as for RLS314; with FSDP2 and ZeRO-3 two rows of each compared rollout (1.16), and none by the policy with its adapters off",
        "whole",
    ),
    "RLS413": yes("by the entropies that the loss computes (0.20 and later)", often="compared"),
    "RLS305": yes("from the rollout to the loss", often="carried"),
    "RLS523": yes(
        "the states of the processes' random generators, where the policy itself generates", often="compared"
    ),
    "RLS820": yes(
        "the tokens that dapo, cispo and vespo divide by, against those of all processes",
        "not where samples are filtered, replayed, or masked when they are truncated",
        often="compared",
    ),
    "RLS303": limited(
        "a subclass that overrides generation or the computation of log-probs hides what it does with them: it is not evaluated"
    ),
    "RLS301": _LIGER,
    "RLS302": _LIGER,
    "RLS310": yes("the ratio of each rollout that has advantages", f"{_LIGER.not_compared}; {_TOKENS}"),
    "RLS605": yes(
        "each group of parameters alone: each schedule of transformers as configured, at the number of updates made",
        "not schedules that a script makes, nor those that follow a metric; "
        "one that is changed in mid-run (its base rate, its function, another scheduler) is a warning, and what "
        "it gives from then on is expected",
    ),
    "RLS801": yes(
        "the documented types, on the same log-probs",
        "not inside a liger loss, nor types of somebody's own, with an adaptive entropy bonus, or with an off-policy mask of an "
        "engine's log-probs or of a release before 1.16; in reduced precision not where its terms cancel to less than a hundredth "
        "of their sizes",
        "compared",
    ),
    "RLS802": yes("old log-probs, advantages and reference that its loss gets"),
    "RLS809": yes("the probed updates", _TOKENS, "probed"),
    "RLS811": yes(
        "what each rank's backward passes gave, and what it got of the reduction, joined from all records",
        "not where tensor, context or sequence parallelism adds up too",
        "whole",
    ),
    "RLS813": yes(
        "the backward pass from the output of the policy's layers to its embeddings, at the first row of a rollout",
        "weights in float32, without FSDP1, dropout, images, torch.compile, reentrant checkpoints, or tensor, context or sequence "
        "parallelism; with FSDP2 and ZeRO-3 where the embeddings are trained",
        "sloped",
    ),
    "RLS812": yes(
        "what each optimizer uses, against what came of the reduction",
        "not with a gradient scaler",
        "whole",
    ),
    "RLS404": yes(
        "the policy's weights; torch's counters of writes, which also show what is written back again: at every update",
        "of DeepSpeed's weights, those in float32 that this process steps, and in fewer cycles those of the model; with ZeRO-3 and "
        "FSDP1 writes are not counted",
        "probed",
    ),
    "RLS423": yes(
        "once, when the trainer has loaded the model from a path: the first rows of what a process holds of up to 16 tensors",
        "not where a script makes the model, nor what changes it before training begins",
        proved=("DDP", "FSDP2", "ZeRO-2", "ZeRO-3"),
    ),
    "RLS312": yes(
        "TRL's correction between vLLM and trainer, of tokens and of sequences, cut off and masked, in 0.23 to 1.16; and that each "
        "loss gets the weights of its own rows",
        "",
        "compared",
    ),
    "RLS412": yes(
        "the weights at the first forward of generate", "not with an engine, FSDP1 or torch.compile", "compared"
    ),
    "RLS411": yes(
        f"the reference at each of these rollouts; with sync_ref_model the first {ALL_OF_FIRST} syncs, and later one of {ONE_OF}",
        "not a sync after the last update",
        "compared",
    ),
    "RLS414": yes("the first rollout of a trainer's first training call"),
    "RLS702": yes(
        "the first rows of up to 16 tensors and of their moments against the files; of FSDP and DeepSpeed all that a process holds "
        "against what it noted when it saved; the state of random generators",
        "moments are those of torch's own optimizers, and the generators of devices are not read; where nothing was noted, as in "
        "another folder of records, of ZeRO and FSDP2 some rows of a process's part are read from the files, and of FSDP1 nothing",
        proved=("FSDP2", "ZeRO-2", "ZeRO-3"),
    ),
    "RLS703": yes(
        "the first rows of up to 16 tensors and of their moments, when a checkpoint has been made",
        "with FSDP2 and ZeRO also of each process's part in the files that a resume loads; not flat parameters of FSDP1, nor the "
        "model that a script saves once training is over",
        proved=("DDP", "FSDP2", "ZeRO-2", "ZeRO-3"),
    ),
    "RLS902": limited("settings, seed and rows are those of when training begins", proved=("DDP", "FSDP2")),
    "RLS401": _PROBED,
    "RLS406": yes("all updates, by the advantages of the rollouts", often="probed"),
    "RLS407": yes("once, when training begins"),
    "RLS408": yes(
        f"layers that are frozen in mid-run, tensors without a gradient, and gradients that are lost: {WORDS['whole']}",
        "with DeepSpeed not tensors that never get one; not layers that are frozen from the start",
    ),
    "RLS402": limited(
        "of a vLLM server the sync is seen and the engine is not; with `rollout_func` or a compiled model, which weights sampled is "
        "not known",
        proved=_CORPUS,
    ),
    "RLS403": yes(
        "vLLM's log-probs where the trainer corrects for them, by their mean and token by token",
        f"a cause is looked for {WORDS['compared']}",
        proved=_CORPUS,
    ),
    "RLS405": limited(
        "it syncs when it generates, if weights have changed. Its plan has no syncs of their own; RLS402 compares versions"
    ),
    "RLS410": yes(
        "the settings of transformers' generate; processors of logits that no setting asks for are counted",
        "not the settings of vLLM's requests; before 0.20 what reward functions let the policy generate counts too",
        proved=_CORPUS,
    ),
    "RLS415": _ENGINE,
    "RLS416": _ENGINE,
    "RLS417": _ENGINE,
    "RLS418": _ENGINE,
    "RLS422": yes(
        "the blocks that requests find filled, of vLLM in the trainer's process and of a vLLM server that was started with "
        "RLSTEP_ENGINES (1.16)",
        "not those of other servers",
    ),
}
"""What single rules compare in GRPOTrainer and RLOOTrainer."""
