"""What is compared of a run of OpenRLHF."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.systems.engine.links import limited, no, yes

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.links import Deployment, Link, LinkName

_SPREAD: tuple[Deployment, ...] = ("ZeRO-1", "ZeRO-2", "ZeRO-3", "offload", "LoRA")
"""Deployments in which two ranks of OpenRLHF's trainer are trained, each with its own losses and steps
(tests/systems/openrlhf/test_ranks.py)."""

LINKS: dict[LinkName, Link] = {
    "settings in force": yes(
        "the arguments of each process with the beginning; betas, epsilon, clip and the decay of each tensor with those configured; "
        "that evaluations and checkpoints come by `eval.steps` and `ckpt.save_steps`, and that an evaluation asks for its temperature, "
        "its samples and all its rows; that rows and a rollout's samples do not come as they stand, where they are shuffled",
        "not engines, references and reward models, and not Muon; asynchronous: not evaluations, nor the order of rows; of shuffled "
        "rows or samples no other order",
        proved=("ZeRO-2",),
    ),
    "completions": yes(
        "copies of each other within a rollout", "their log-probs come without what tells how they were drawn"
    ),
    "completions on the way": yes(
        "prompts from the rows to the engines and by the tokenizer, and from the engine's answer to the trainer's buffer and the "
        "forward that is trained, of policy and critic; the answers of executors against the turns that the engine sampled for them",
        "asynchronous: answers, and then from the controller on; not answers that begin with a prompt that no turn was asked for, or "
        "with images",
        often="compared",
        proved=("ZeRO-2",),
    ),
    "rewards on the way": yes(
        "from the answer of the engine or the reward model to the advantages, by the tokens; the labels of rows and prompts; what a "
        "reward function or server was asked about each answer and gave, as reward and as score, and what the steps of an agent add "
        "up to",
        "asynchronous: not the labels of the data set; not the rewards of a loop of one's own; what a reward model gives is RLS314's",
    ),
    "advantages": yes(
        "from the rewards, in float64: gae with values and targets, reinforce, rloo, reinforce_baseline, group_norm, dr_grpo, "
        "flash_reinforce; penalties for length, limits of rewards, the KL penalty from the log-probs, normalisation",
        "a KL coefficient that adapts is compared with its formula for the divergence that it was updated with, which is taken as it "
        "came",
        often="compared",
        proved=("ZeRO-2",),
    ),
    "advantages on the way": yes(
        "from the controller to the trainer's buffer and the loss; the critic's targets too",
        often="compared",
        proved=("ZeRO-2",),
    ),
    "mask": yes(
        "the tokens that the sampler chose, turn by turn",
        "asynchronous: in the answers of executors, not from there to the trainer; not what a loop of one's own leaves untrained",
        often="compared",
    ),
    "mask on the way": yes(
        "from the advantages to the loss, and from old log-probs or values to it", often="compared", proved=_SPREAD
    ),
    "loss": yes(
        "ppo and gspo, dual clip, both means, the correction for the engine's log-probs with its level, gate and bounds, the KL term, "
        "the entropy bonus; the critic's with its clip of values; in float64",
        "not a loss of experts: then the policy's term alone",
        often="compared",
        proved=_SPREAD,
    ),
    "backward": yes(
        "the factor that arrives at the loss of policy or critic, and the gradient at each log-prob, entropy or value",
        "not in float16, where a scaler multiplies too",
        proved=_SPREAD,
    ),
    "gradients cleared": no(
        "DeepSpeed keeps them inside its engine; what is left over shows in the gradients on the way"
    ),
    "gradients on the way": yes(
        "from each backward pass to the flat gradient that DeepSpeed's optimizer steps with",
        "not where several processes train a role, nor with ZeRO-3, float16 or an offloaded optimizer",
        often="whole",
    ),
    "reduction": yes(
        "what each rank's backward passes gave, and what it got of the reduction, joined from all records; policy and critic",
        "not with ring attention or tensor parallelism",
        often="whole",
        proved=_SPREAD,
    ),
    "gradient norm": yes(
        "of the gradients that DeepSpeed's optimizer steps with",
        "the part of one process",
        often="whole",
        proved=_SPREAD,
    ),
    "optimizer step": yes(
        "DeepSpeed's Adam and AdamW on its float32 weights, those that a process holds",
        "not Muon",
        often="compared",
        proved=_SPREAD,
    ),
    "optimizer moments": yes("between a replayed step and the next", often="compared", proved=_SPREAD),
    "learning rate": yes(
        "constant, linear and cosine of transformers as configured, of policy and critic",
        "not other schedules",
        proved=_SPREAD,
    ),
    "reference": yes("a checksum of its weights", "not on other machines than the controller's"),
    "reference on the way": yes(
        "from the reference's answer to the trainer's buffer and the loss; the KL penalty from it",
        often="compared",
    ),
    "sampler": yes(
        "what the engine is given and holds after each sync, its settings, its log-probs",
        "not weights through CUDA IPC",
    ),
    "weights between updates": yes(
        "a probe of the optimizer's weights between updates, and of the model's at each use; sums of all of both, of moments, of "
        "frozen weights and of rotary frequencies",
        "not the model's with ZeRO-3; not the sums of weights that the optimizer holds on another device",
        proved=("ZeRO-2",),
    ),
    "replicas": yes(
        "the weights and buffers of the ranks bit for bit; policy and critic",
        "not weights with ZeRO-3, where no rank holds them whole; not with ring attention or tensor parallelism",
        often="whole",
        proved=("ZeRO-1", "ZeRO-2", "offload", "LoRA"),
    ),
}

_ENGINE = yes(
    "what vLLM is given and holds after each sync, and with ZeRO-3 what each rank has gathered for it, by the rank's own part",
    "not weights through CUDA IPC",
)

RULES: dict[str, Link] = {
    "RLS305": yes(
        "from the refresh to the loss, and the engine's log-probs from its turns to the trainer's buffer and the loss"
    ),
    "RLS306": yes(
        "prompts from the data set to the engines; tokens from the engine's turns to the trainer's buffer, and to the forward that is "
        "trained",
        "asynchronous: to the executors' answers, and from the controller on",
        "compared",
    ),
    "RLS310": yes("the ratio of each rollout that has advantages"),
    "RLS312": no("the weights are computed inside of the loss, where RLS801 names what they are mistaken for"),
    "RLS314": yes(
        "two rows of one micro-batch of old log-probs, scored again one at a time; two rows of the critic's values, and two rewards of "
        "a reward model",
        "with padded rows and without images, not with ring attention or tensor parallelism; log-probs and values in "
        "ZeRO-3 beside the own forwards of policy, critic and reward model; rewards not of an offloaded model, and on the "
        "controller's machine",
        "whole",
    ),
    "RLS315": yes(
        "two rows of one micro-batch of the reference, scored again one at a time",
        "on the controller's machine, with padded rows and without images; in ZeRO-3 beside the reference's own forwards; not with "
        "ring attention or tensor parallelism",
        "whole",
    ),
    "RLS402": yes("the weights of the engine at each rollout"),
    "RLS403": yes(
        "the engine's log-probs where the configuration asks for them, by their mean and token by token",
        "of causes only a configured top_p is told from the rest",
    ),
    "RLS404": yes(
        "the weights of policy and critic: the optimizer's between updates, and the policy's model at each use; a checksum of a reward "
        "model's",
        "not the policy's model with ZeRO-3; reward models on the controller's machine",
    ),
    "RLS406": yes("all updates, by the advantages of the rollouts"),
    "RLS408": yes(
        "layers that are frozen in mid-run; one tensor without a gradient", "not layers that are frozen from the start"
    ),
    "RLS410": yes(
        "the settings of each request of an engine, also the tokens that end a completion but for the model's own, and the "
        "length at which answers of one turn were cut off"
    ),
    "RLS423": yes(
        "once, when policy and critic have been loaded: the first rows of what a process holds of up to 16 tensors",
        "not the critic's head, nor what a resumed run begins with",
        proved=("ZeRO-2", "ZeRO-3"),
    ),
    "RLS411": yes("a checksum of its weights", "not on other machines than the controller's"),
    "RLS414": yes("the first rollout of a run"),
    "RLS415": _ENGINE,
    "RLS416": _ENGINE,
    "RLS417": _ENGINE,
    "RLS422": yes("the blocks that requests of vLLM find filled"),
    "RLS501": yes("whether the samples of each group have one prompt, in the controller"),
    "RLS502": limited(
        "samples that move to another process after their log-probs were computed are followed; groups that a filter by scores lets "
        "in are compared, but not asynchronous"
    ),
    "RLS505": yes("the advantages of each rollout, and in the controller the rewards beside them"),
    "RLS509": yes("rows by their prompts, where they are generated for"),
    "RLS514": yes("the samples of each rollout against those of earlier ones"),
    "RLS519": yes("the completions of each rollout, in the controller"),
    "RLS702": yes("the weights of each role, and the moments of its optimizer", "not the state of random generators"),
    "RLS703": yes(
        "the first rows of what a process holds of up to 16 tensors, in DeepSpeed's checkpoints and in the models that are saved for "
        "others; the moving average of the weights (`train.enable_ema`) by its formula, when it is saved",
        "moments, and the float32 weights that are stepped, where ZeRO writes them; in ZeRO-3 no whole weights in DeepSpeed's own "
        "files; no average in float16; what is saved once training is over is in the report that is made of the record afterwards",
        proved=("ZeRO-2", "ZeRO-3"),
    ),
    "RLS801": yes(
        "ppo and gspo, dual clip, both means, the correction for the engine's log-probs with its level, gate and bounds, the KL term, "
        "the entropy bonus; the critic's with its clip of values",
        "where rounding decides whether the correction leaves a token out, that token may be either; with a loss of experts the "
        "policy's term alone; on several ranks the divisor is RLS820's; in reduced precision not where "
        "its terms cancel to less than a hundredth of their sizes",
        "compared",
    ),
    "RLS820": yes(
        "the tokens, and the samples that have one, that losses of policy and critic are divided by, against those of all ranks",
        "not the last update of a pass that has fewer micro-batches than others",
        often="compared",
    ),
    "RLS813": no("its models train in bfloat16 or float16, where a step short enough for a slope is rounded away"),
    "RLS802": yes("old log-probs, advantages and the critic's targets"),
    "RLS811": yes(
        "what each rank's backward passes gave, and what it got of the reduction, joined from all records; policy and critic",
        "not with ring attention or tensor parallelism",
        "whole",
    ),
    "RLS812": yes(
        "what each rank's optimizer uses, against what came of the reduction",
        "not in float16, where a scaler divides too; not with ring attention or tensor parallelism",
        "whole",
    ),
}
