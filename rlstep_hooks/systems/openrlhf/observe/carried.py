"""What a rollout's samples hold on their way through the controller: from the engine and the models to the advantages and the trainers.

All of it is on the CPU there, and only looked at: checksums of what is handed on are compared from place to place. B samples, T tokens.
Source: OpenRLHF 0.11.2, trainer/ppo_utils/samples_generator.py:255, experience_maker.py:118-231, trainer/ppo_trainer.py:228-238.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.identity import checksum_of
from rlstep_hooks.record.events import Carried, CarriedPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rlstep_hooks.record.values import Role

REMEMBERED = 1 << 18
"""Samples that came from an engine and were not trained so far, for instance because they were filtered out."""

FROM_ENGINES = "from the engines to the models"
FROM_MODELS = "from the models to the advantages"
IN_CONTROLLER = "from the advantages to the call of the trainers"
TO_TRAINERS = "from the controller to the buffer of the trainer"

_HELD: dict[Role, dict[str, str]] = {
    "policy": {
        "mask": "action_mask",
        "engine log-probs": "rollout_log_probs",
        "old log-probs": "action_log_probs",
        "reference log-probs": "base_action_log_probs",
        "advantages": "advantages",
    },
    "critic": {"mask": "action_mask", "targets": "returns", "old values": "values"},
}
"""The field of OpenRLHF's `Experience` that keeps what is carried, by the role whose trainer it is for, and by its name."""

_ANSWERS = {
    "actor_model_group": ("old log-probs", "action_log_probs"),
    "critic_model_group": ("old values", "values"),
    "reference_model_group": ("reference log-probs", "base_action_log_probs"),
    "reward_model_group": ("rewards", "rewards"),
}
"""Group of processes -> what its models give, and the field that keeps it."""


def part_of(rows: Iterable[Mapping[str, Tensor]]) -> CarriedPart:
    """Samples that are carried together, each by what it holds."""
    count, checksums = 0, dict[str, int]()
    for row in rows:
        count += 1
        for name, tensor in row.items():
            checksums[name] = checksum_of(tensor, checksums.get(name, 0))
    return CarriedPart(count, checksums)


def sample_of(item: Any, role: Role) -> dict[str, Tensor]:
    """What one sample of a trainer's buffer holds, without padding."""
    held = {name: getattr(item, field) for name, field in _HELD[role].items()}
    return {"tokens": item.sequences} | {
        name: tensor.bool() if name == "mask" else tensor for name, tensor in held.items() if tensor is not None
    }


def samples_of(experience: Any, role: Role) -> Iterator[dict[str, Tensor]]:
    """What each sample of a part of a rollout holds, without padding (on the right)."""
    held = {name: getattr(experience, field) for name, field in _HELD[role].items()}
    for place, length in enumerate(experience.attention_mask.sum(1).tolist()):
        yield {"tokens": experience.sequences[place][:length]} | {
            name: tensor[place][: length - 1].bool() if name == "mask" else tensor[place][: length - 1]
            for name, tensor in held.items()
            if tensor is not None
        }


class CarriedSamples:
    """Follows the samples of each rollout through one controller.

    Args:
        args: OpenRLHF's arguments.
    """

    def __init__(self, args: Any) -> None:
        self._use_loss = bool(args.algo.kl.use_loss)
        self._from_engines: OrderedDict[int, set[int]] = OrderedDict()
        """Checksums of the engine's log-probs of the samples that it gave, by that of their tokens."""
        self._forgot = False
        """Whether some samples that were not asked about so far are forgotten."""
        self._with_log_probs = False
        self._calls: dict[int, tuple[str, Any]] = {}
        """Group of processes that a list of answers is awaited from, by the list's id, with the list."""
        self._answers: dict[str, list[Tensor]] = {}
        self._checksums: dict[str, list[list[int]]] = {}
        """Checksums of each answer, part by part and sample by sample."""
        self._computed: dict[Role, dict[int, list[dict[str, int]]]] = {}
        """What each sample held when advantages had been computed, by the checksum of its tokens, which several may share."""

    # From the engines to the models

    def generated(self, response: Mapping[str, Any], length: int) -> None:
        """An engine gave a sample, which is cut to this length."""
        tokens = checksum_of(torch.tensor(response["observation_tokens"], dtype=torch.long)[:length])
        given = response.get("rollout_log_probs")
        self._with_log_probs = given is not None
        log_probs = self._from_engines.setdefault(tokens, set())
        if given is not None:
            log_probs.add(checksum_of(torch.tensor(given[1:length])))
        if len(self._from_engines) > REMEMBERED:
            self._from_engines.popitem(last=False)
            self._forgot = True

    def asked(self, experiences: list[Any], rollout: int) -> Carried | None:
        """The models are about to be asked about these samples."""
        self._calls.clear()
        self._answers.clear()
        self._checksums.clear()
        compared, altered, used = 0, dict[str, int](), list[int]()
        for experience in experiences if self._from_engines else ():
            for sample in samples_of(experience, "policy"):
                key = checksum_of(sample["tokens"])
                compared += 1
                before, now = self._from_engines.get(key), sample.get("engine log-probs")
                if before is None:
                    altered["tokens"] = altered.get("tokens", 0) + 1
                    continue
                used.append(key)
                if before and (now is None or checksum_of(now) not in before):
                    altered["engine log-probs"] = altered.get("engine log-probs", 0) + 1
        for key in used:
            self._from_engines.pop(key, None)
        forgot, self._forgot = self._forgot, False
        if not compared or forgot or not is_compared(rollout):
            return None
        names = ("tokens", *(("engine log-probs",) if self._with_log_probs else ()))
        return Carried(way=FROM_ENGINES, rollout=rollout, compared=compared, names=names, altered=altered)

    # From the models to the advantages

    def called(self, group: str, references: Any) -> None:
        """The models of a group were asked; their answers are awaited by this list."""
        if group in _ANSWERS:
            self._calls[id(references)] = group, references

    def answered(self, references: Any, answers: list[Any], rollout: int) -> None:
        """Take the answers to a call, one tensor for each part of the rollout."""
        group, _ = self._calls.pop(id(references), ("", None))
        if group and is_compared(rollout):
            self._answers[group] = answers
            self._checksums[group] = [[checksum_of(row) for row in part] for part in answers]

    def made(self, experiences: list[Any], rollout: int) -> Carried | None:
        """Compare answers of models that were put beside their samples."""
        altered, names = dict[str, int](), dict[str, None]()
        for group, parts in self._checksums.items():
            name, field = _ANSWERS[group]
            if len(parts) != len(experiences):
                continue
            for experience, before in zip(experiences, parts, strict=True):
                now = getattr(experience, field)
                if now is None:  # the reference's log-probs, where only the KL penalty takes them
                    continue
                names[name] = None
                wrong = sum(checksum_of(row) != one for row, one in zip(now, before, strict=True))
                if wrong:
                    altered[name] = altered.get(name, 0) + wrong
        if not names:
            return None
        compared = sum(len(experience.sequences) for experience in experiences)
        return Carried(way=FROM_MODELS, rollout=rollout, compared=compared, names=tuple(names), altered=altered)

    def penalised(self) -> list[tuple[Tensor, Tensor]] | None:
        """Log-probs (B, T) of each part by the policy and by the reference, as the models answered, that a KL penalty of the rewards is
        of; None where there is none, or they are not known."""
        own, theirs = self._answers.get("actor_model_group"), self._answers.get("reference_model_group")
        if self._use_loss or own is None or theirs is None or len(own) != len(theirs):
            return None
        return list(zip(own, theirs, strict=True))

    def reference_gap(self, experiences: list[Any]) -> float | None:
        """Mean |policy - reference| of the log-probs of all tokens that count, by the models' answers; None where these are unknown."""
        own, theirs = self._answers.get("actor_model_group"), self._answers.get("reference_model_group")
        if own is None or theirs is None or not len(own) == len(theirs) == len(experiences):
            return None
        total, tokens = 0.0, 0
        for one, other, experience in zip(own, theirs, experiences, strict=True):
            counted = experience.action_mask.bool()
            total += float((one.float() - other.float())[counted].abs().sum())
            tokens += int(counted.sum())
        return total / tokens if tokens else None

    # From the advantages to the trainers

    def computed(self, experiences: list[Any], rollout: int) -> None:
        """Advantages were computed."""
        self._answers.clear()
        self._computed = {}
        if not is_compared(rollout):
            return
        for role in _HELD:
            self._computed[role] = {}
            for experience in experiences:
                for sample in samples_of(experience, role):
                    checksums = {name: checksum_of(tensor) for name, tensor in sample.items()}
                    self._computed[role].setdefault(checksums["tokens"], []).append(checksums)

    def handed(self, role: Role, experiences: list[Any], rollout: int) -> list[Carried]:
        """Compare what is sent to the trainers of a role: what was altered since their advantages were computed, and what is sent."""
        before = self._computed.pop(role, None)
        if before is None:
            return []
        compared, altered, names = 0, dict[str, int](), dict[str, None]()
        for experience in experiences:
            for sample in samples_of(experience, role):
                compared += 1
                names |= dict.fromkeys(sample)
                checksums = {name: checksum_of(tensor) for name, tensor in sample.items()}
                for name in differing(checksums, before.get(checksums["tokens"], ())):
                    altered[name] = altered.get(name, 0) + 1
        parts = tuple(part_of(samples_of(experience, role)) for experience in experiences)
        return [
            Carried(
                way=IN_CONTROLLER, rollout=rollout, role=role, compared=compared, names=tuple(names), altered=altered
            ),
            Carried(way=TO_TRAINERS, rollout=rollout, role=role, parts=parts),
        ]


def differing(now: Mapping[str, int], before: Iterable[Mapping[str, int]]) -> list[str]:
    """Names of what a sample holds otherwise than the most similar one of the same tokens; the tokens alone if there is none."""
    names = ([name for name, checksum in now.items() if known.get(name) != checksum] for known in before)
    return min(names, key=len, default=["tokens"])
