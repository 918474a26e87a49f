"""A model that does not have the weights of the files that it was loaded from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.record.events import LOADED

if TYPE_CHECKING:
    from rlstep_hooks.record.events import RunStarted


class LoadedOtherwise(Rule):
    """The policy or the critic does not begin with the weights of the files that the framework has loaded it from.

    What it checks:
        Where the framework loads the model itself from a path: the first rows of up to 16 tensors, against the safetensors of that
        path, in the dtype of the model. Numbers that were rounded to bfloat16 or float16 on the way are taken for the same.

    Why it matters:
        Weights that were not loaded are random, or those of an earlier look at the model. Training begins from them without an error,
        and so does the reference, whose divergence from the policy is 0 as it should be. A critic that begins with random layers
        gives values that mean nothing for a long time.

    Example:
        ERROR RLS423 Model not loaded from its files · the whole run
          expected  the weights of the files that the policy was loaded from
          observed  other weights of the policy, before anything is trained
          why       training begins with a model that nobody asked for
          fix       compare the names of its tensors with those of the files, and
                    look at what the loader warned of

    What to do:
        transformers warns of weights that are newly initialised: compare the names of the model's tensors with those of the files. With
        ZeRO-3 look at whether the model was made before DeepSpeed's configuration was known.

    Known limits:
        - Not a model that a script hands over: it may have changed its weights on purpose. Not quantised weights, nor tensors that
          transformers puts together from several. Of a critic not its head, where the files have none.

    Sources:
        - https://huggingface.co/docs/transformers/main_classes/model: what `from_pretrained` does with weights that it does not find
        - https://huggingface.co/docs/transformers/main/deepspeed: what has to be known before a model is loaded with ZeRO-3
    """

    code = "RLS423"
    title = "Model not loaded from its files"
    topics = ("weights",)
    optional = True
    nothing_seen = "a script has made the model, or its files are in another format or not on this machine"

    def started(self, event: RunStarted) -> None:
        """Look at what the observer compared when the trainer had loaded the model."""
        for role, fact in LOADED.items():
            loaded = event.facts.get(fact, "unknown")
            if loaded == "unknown" or self.holds(loaded == "as saved"):
                continue
            self.fail(
                expected=f"the weights of the files that the {role} was loaded from",
                observed=f"other weights of the {role}, before anything is trained",
                why="training begins with a model that nobody asked for",
                fix="compare the names of its tensors with those of the files, and look at what the loader warned of",
                variant=role,
            )
