"""Whether a reward model keeps its weights, and gives what they give, in its own processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.compared import is_compared_whole
from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.observe.scored_rows import TOPIC
from rlstep_hooks.systems.openrlhf.observe import values_alone
from rlstep_hooks.systems.openrlhf.observe.deployment import has_whole_rows, holds_whole_model
from rlstep_hooks.systems.openrlhf.observe.models_beside import ModelRecord, ModelRecords, Told
from rlstep_hooks.systems.openrlhf.observe.values_beside import ValuesBeside

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.observe.hooks import Call


class RewardModelRecord(ModelRecord):
    """One process of a reward model.

    Args:
        actor: OpenRLHF's `RewardModelActor`.
    """

    def __init__(self, actor: Any) -> None:
        super().__init__(f"reward{actor._rank}", actor.model)
        self._args = actor.strategy.args
        self._calls = 0
        self._beside: ValuesBeside | None = None
        """Computes rewards beside the model's own forwards; None where this process holds the whole model."""
        if not holds_whole_model(self._args) and not self._args.reward.offload:
            self._beside = ValuesBeside(Told(self))
            # launcher.py:192: gives the rewards of one micro-batch.
            Hooks(Told(self)).forward(actor.model, before=self._forward, after=self._rewarded, topics=(TOPIC,))

    def begins(self) -> None:
        """The model is about to give the rewards of a rollout."""
        super().begins()
        if self._beside is not None and self._looks:
            self._beside.begin()

    @property
    def _looks(self) -> bool:
        return not self.why_not_alone and is_compared_whole(self._calls)

    def _forward(self, call: Call) -> None:
        if self._beside is not None and self._looks:
            self._beside.forward_begins(call.owner, lambda: _batch_of(call), whole_rows=has_whole_rows(self._args))

    def _rewarded(self, call: Call) -> None:
        if self._beside is not None:
            self._beside.forward_ends()

    def computed(self, data: Any, part: slice, results: list[Any]) -> None:
        """Rewards were computed: compute some again, of a row alone each, and record what was found.

        Args:
            data: What the model is asked about, one tensor for each micro-batch.
            part: The micro-batches of this process.
            results: (B,) each, what goes to the controller.
        """
        number, looks = self._calls, self._looks
        self._calls += 1
        if not looks or not results:
            return
        model = getattr(self._model, "module", self._model)
        if self._beside is not None:
            attentions = data["attention_mask"][part]
            values = [values_alone.as_values(*given) for given in zip(attentions, results, strict=True)]
            found = self._beside.end(model, values)
        else:
            found = self._computed_again(model, data, part, results, number)
        if found:
            self.tell(alone={"reward_clean_gap": found["clean_gap"], "reward_clean_like": found["clean_like"]})

    def _computed_again(self, model: Any, data: Any, part: slice, results: list[Any], number: int) -> dict[str, Any]:
        """Rewards of two rows of one micro-batch, each by a forward of this process's own."""
        if why := values_alone.why_not(model, whole=holds_whole_model(self._args) and not self._args.reward.offload):
            self.cannot_compare(why)
            return {}
        place, device = number % len(results), torch.cuda.current_device()
        tokens, attention = (data[name][part][place].to(device) for name in ("sequences", "attention_mask"))
        given = values_alone.as_values(attention, results[place])
        return values_alone.look(model, values_alone.of_rewards(tokens, attention), given, number)


def _batch_of(call: Call) -> values_alone.Batch:
    """What OpenRLHF's `RewardModel.forward` is called with."""
    given = call.named("input_ids", "attention_mask")
    return values_alone.of_rewards(given["input_ids"], given["attention_mask"])


def records_of_reward_model(args: Any, folder: Path, run: str) -> ModelRecords:
    """The records of a reward model's processes; of none where rewards come from elsewhere."""
    # train_ppo_ray.py:105: a server or a function is asked in the place of a model.
    asked = args.reward.model_name_or_path and not args.reward.remote_url
    processes = int(args.reward.num_nodes) * int(args.reward.num_gpus_per_node) if asked else 0
    return ModelRecords(folder, run, "reward", processes, gap="reward_clean_gap")
