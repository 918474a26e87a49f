"""Whether a reward model keeps its weights, and gives what they give, in its own processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.compared import is_compared_whole
from rlstep_hooks.systems.openrlhf.observe import values_alone
from rlstep_hooks.systems.openrlhf.observe.deployment import holds_whole_model
from rlstep_hooks.systems.openrlhf.observe.models_beside import ModelRecord, ModelRecords

if TYPE_CHECKING:
    from pathlib import Path


class RewardModelRecord(ModelRecord):
    """One process of a reward model.

    Args:
        actor: OpenRLHF's `RewardModelActor`.
    """

    def __init__(self, actor: Any) -> None:
        super().__init__(f"reward{actor._rank}", actor.model)
        self._strategy = actor.strategy
        self._calls = 0

    def computed(self, data: Any, part: slice, results: list[Any]) -> None:
        """Rewards were computed: compute some again, of a row alone each, and record what was found.

        Args:
            data: What the model is asked about, one tensor for each micro-batch.
            part: The micro-batches of this process.
            results: (B,) each, what goes to the controller.
        """
        number, self._calls = self._calls, self._calls + 1
        if self.why_not_alone or not is_compared_whole(number) or not results:
            return
        args, model = self._strategy.args, getattr(self._model, "module", self._model)
        if why := values_alone.why_not(model, whole=holds_whole_model(args) and not args.reward.offload):
            self.cannot_compare(why)
            return
        place, device = number % len(results), torch.cuda.current_device()
        tokens, attention = (data[name][part][place].to(device) for name in ("sequences", "attention_mask"))
        found = values_alone.look_at_rewards(model, tokens, attention, results[place], number)
        self.tell(alone={"reward_clean_gap": found["clean_gap"], "reward_clean_like": found["clean_like"]})


def records_of_reward_model(args: Any, folder: Path, run: str) -> ModelRecords:
    """The records of a reward model's processes; of none where rewards come from elsewhere."""
    # train_ppo_ray.py:105: a server or a function is asked in the place of a model.
    asked = args.reward.model_name_or_path and not args.reward.remote_url
    processes = int(args.reward.num_nodes) * int(args.reward.num_gpus_per_node) if asked else 0
    return ModelRecords(folder, run, "reward", processes, gap="reward_clean_gap")
