"""What ms-swift's engine was asked for and gave, joined with the rows that are trained, and with what was scored.

`_engine_infer` hands the requests of a rollout to the engine and gets its answers, each with the tokens of its prompt and those that
were drawn (4.6.0 rlhf_trainers/rollout_mixin.py:1357). Rows come from the device with the numbers of their rollout, and are compared
when they have arrived.

With a multi-turn scheduler in the trainer's process it is called for all samples, and again for those that go on. Earlier turns
stand in a request as the tokens that were drawn (4.6.0 rollout/agent_loop.py:200), and all of them are trained unless `step` gives
tokens or a mask of its own (docs/source_en/Instruction/GRPO/DeveloperGuide/multi_turn.md). Such a scheduler may cut a turn or leave it
untrained; what it trains must have been sampled.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.conversations import chains_of
from rlstep_hooks.observe.joined_values import fields_of
from rlstep_hooks.observe.token_origins import join
from rlstep_hooks.observe.turn_rows import Ids, Request, Row, RowRule
from rlstep_hooks.record.events import RolloutValues
from rlstep_hooks.systems.trl.observe.tools_used import Spoken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.observe.numbers import Values
    from rlstep_hooks.session.recorder import Recorder

_LARGEST = 1 << 24
"""Token ids below it are exact in float32, in which numbers are fetched."""
_UNBOUNDED = 1 << 62


class SwiftTurns:
    """Keeps the turns of one rollout from their generation until the rollout is complete.

    Args:
        trainer: A GRPOTrainer of ms-swift.
    """

    def __init__(self, trainer: Any, recorder: Recorder) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._scheduler = getattr(trainer, "multi_turn_scheduler", None)
        self._looks = False
        self._calls: list[list[Request]] = []
        """The turns of each call of the engine, in the order of its requests."""
        self._as_sampled = self._scheduler is None or _leaves_tokens(self._scheduler)
        """Whether turns have the tokens and the mask of the engine, in all rollouts so far."""
        strategy = getattr(getattr(trainer.template, "loss_scale", None), "base_strategy", None)
        self._all_trained = self._scheduler is None or strategy == "default"
        """Whether all turns are to be trained (--loss_scale default, as documented for several turns)."""

    @property
    def spoken(self) -> Spoken:
        """Nothing: what is scored is compared with the tokens."""
        return Spoken()

    def attach(self, hooks: Hooks) -> None:
        """Place the hooks, or say why turns are not seen."""
        why = self._why_not()
        if why:
            self._recorder.cannot("mask", why)
            return
        hooks.wrap(self._trainer, "_engine_infer", after=self._infers, topics=("mask",))
        if self._scheduler is not None:  # called for each turn, with what `step` gave of its tokens and mask
            hooks.wrap(self._scheduler, "get_response_token_data", before=self._takes_turn, topics=("mask",))

    def _why_not(self) -> str:
        trainer = self._trainer
        if not hasattr(trainer, "_engine_infer"):
            return "this release asks its engine in another way than the one that was read"
        if getattr(trainer, "enable_server_multi_turn", False):
            return "a scheduler in the server makes the turns, which are not seen here"
        if self._scheduler is not None and not hasattr(self._scheduler, "get_response_token_data"):
            return "the turns of this release's multi-turn schedulers were not read"
        if self._scheduler is not None and not trainer.template.template_meta.support_multi_round:
            return "this template leaves out all but the last round"
        shared = trainer.vllm_mode == "server" or trainer.vllm_tensor_parallel_size > 1
        if shared and trainer.args.use_vllm and trainer.accelerator.num_processes > 1:
            return "one process asks the engine for the samples of several"
        if trainer.template.padding_free:
            return "with padding_free, rows are not taken apart"
        if trainer.args.dynamic_sample or trainer.template.truncation_strategy == "raise":
            return "which generations give the samples of a rollout is decided after them"
        return "" if len(trainer.template.tokenizer) < _LARGEST else "token ids are too large"

    def begin(self, *, looks: bool, log_probs: bool) -> None:
        """A rollout begins; its turns are kept if `looks`. An engine tells its log-probs by itself."""
        self._looks, self._calls = looks, []

    def _infers(self, call: Call) -> None:
        if not self._looks:
            return
        turns = [_turn(output) for output in call.result]
        if not turns:
            return  # of a process whose conversations are over, and those of others are not
        if all(turn is not None for turn in turns):
            self._calls.append([turn for turn in turns if turn is not None])
        else:
            self._looks = False
            self._recorder.cannot("mask", "the engine did not say which tokens it was asked for and gave")

    def _takes_turn(self, call: Call) -> None:
        own = (call.argument("response_token_ids", 3), call.argument("response_loss_mask", 4))
        if any(one is not None for one in own):
            self._as_sampled = False

    @property
    def last(self) -> list[Request]:
        """What was asked and given for the last message of each sample, in the order of the samples; none where that was not seen."""
        if not self._looks or not self._calls or (len(self._calls) > 1 and not self._as_sampled):
            return []
        chains = chains_of(self._calls, [], self._decode)
        # A turn right behind another one goes on with its message.
        goes_on = any(after.asked == one.whole for chain in chains for one, after in itertools.pairwise(chain))
        if goes_on or len(chains) != len(self._calls[0]):
            return []
        return [chain[-1] for chain in chains]

    @property
    def several(self) -> bool:
        """Whether a scheduler may make a completion of several turns."""
        return self._scheduler is not None

    def _end_of_template(self) -> Ids:
        """The tokens of the template's suffix: text, or lists of tokens by number or by their name in the tokenizer."""
        template = self._trainer.template
        return list(template._encode_context_list(template.template_meta.suffix)[0])

    def _decode(self, ids: Ids) -> str:
        return str(self._trainer.template.tokenizer.decode(ids, skip_special_tokens=False))

    def take(self, index: int, parts: list[dict[str, Any]]) -> tuple[JoinedSamples, Tensor] | None:
        """What is to be compared of a rollout, and how; None where nothing is.

        Args:
            index: The rollout.
            parts: The entries of the rollout by TRL's names.
        """
        looks, calls, self._looks, self._calls = self._looks, self._calls, False, []
        samples = sum(part["completion_mask"].shape[0] for part in parts)
        if not looks or not calls or len(calls[0]) != samples or (len(calls) > 1 and not self.several):
            return None
        shapes, blocks, compares = [], [], True
        for part in parts:
            ids, real, trained = part["input_ids"], part["attention_mask"], part["completion_mask"]
            own = part["sampling_per_token_logps"]
            if real is None or real.shape != ids.shape or ids.shape[0] != trained.shape[0]:
                self._recorder.cannot("mask", "the rows that the model gets have no mask of their padding")
                return None
            compares = compares and own is not None
            own = torch.zeros_like(trained, dtype=torch.float32) if own is None else own
            shapes.append((int(ids.shape[0]), int(ids.shape[1]), int(trained.shape[1])))
            blocks += [block.reshape(-1).float() for block in (ids, real, trained, own)]
        rule = RowRule(
            decode=self._decode,
            longest=_UNBOUNDED,
            closers=frozenset(),
            masks_truncated=False,
            exact=self._as_sampled and self._all_trained,
            template_end=self._end_of_template() if self.several else [],
            hands_over=self._as_sampled,  # a scheduler may hand over log-probs of its own
        )
        longest = self._trainer.template.max_length if self.several else None
        return JoinedSamples(index, tuple(shapes), calls, rule, compares, longest), torch.cat(blocks)


def _leaves_tokens(scheduler: Any) -> bool:
    """Whether a scheduler leaves it to ms-swift which tokens and which mask a turn has."""
    method = getattr(type(scheduler), "get_response_token_data", None)
    return str(getattr(method, "__module__", "")).partition(".")[0] == "swift"


def _turn(output: Any) -> Request | None:
    """A turn that the engine gave; None where it does not say its tokens, or several stand in one answer."""
    if output.response_token_ids:
        return None
    response = output.response
    [choice] = response.choices
    if response.prompt_token_ids is None or choice.token_ids is None:
        return None
    log_probs = None
    if choice.logprobs is not None and "content" in choice.logprobs:
        told = [token["logprob"] for token in choice.logprobs["content"]]
        log_probs = torch.tensor(told, dtype=torch.float32).tolist()
    return Request(list(response.prompt_token_ids), list(choice.token_ids), log_probs)


class JoinedSamples(msgspec.Struct, frozen=True):
    """What the numbers of one rollout mean: its rows, beside the turns that were sampled for them."""

    index: int
    shapes: tuple[tuple[int, int, int], ...]
    """Rows, tokens of a row, and tokens at its end that may be trained, of each entry; an entry is tokens, 1 on those that are no
    padding, 1 on those that are trained, and their log-probs of the sampling."""
    calls: list[list[Request]]
    rule: RowRule
    compares: bool
    """Whether the loss gets log-probs of the sampling."""
    longest: int | None = None
    """Tokens from which on a row of several turns may have been cut; None where none is."""

    @property
    def of(self) -> Values:
        """The class of values whose fields the numbers are: those of a rollout."""
        return RolloutValues

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """Compare."""
        rows = [self._row(turn, *blocks) for turn, blocks in zip(self.calls[0], self._blocks(numbers), strict=True)]
        if self.longest is not None and any(len(row.whole) >= self.longest for row in rows):
            return {}
        fields = fields_of(join(self.calls, rows, self.rule))
        return {self.index: fields} if fields else {}

    def _blocks(self, numbers: list[float]) -> Iterator[tuple[list[float], list[float], list[float], list[float]]]:
        """The tokens of each row, which of them are real, which are trained, and their log-probs."""
        start = 0
        for rows, wide, last in self.shapes:
            of_part = []
            for width in (wide, wide, last, last):
                of_part.append([numbers[start + row * width : start + (row + 1) * width] for row in range(rows)])
                start += rows * width
            yield from zip(*of_part, strict=True)

    def _row(self, first: Request, ids: list[float], real: list[float], trained: list[float], own: list[float]) -> Row:
        """A row, whose completion begins where that of its first turn does, or where it is trained before that."""
        before = [0.0] * (len(ids) - len(trained))
        places = [place for place, is_real in enumerate(real) if is_real]
        whole = [int(ids[place]) for place in places]
        mask, log_probs = ([(before + block)[place] for place in places] for block in (trained, own))
        asked = len(first.asked) if whole[: len(first.asked)] == first.asked else len(whole)
        begin = min(asked, next((place for place, is_on in enumerate(mask) if is_on), asked))
        return Row(
            prompt=whole[:begin],
            completion=whole[begin:],
            trained=[int(bool(one)) for one in mask[begin:]],
            log_probs=log_probs[begin:] if self.compares else None,
        )
