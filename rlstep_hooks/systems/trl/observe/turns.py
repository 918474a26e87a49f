"""What the policy's `generate` was asked for and gave in each of several turns, joined with the rows that are trained.

With `tools` or an `environment_factory` GRPOTrainer calls `generate` for all samples, and again for those that called a tool, with
prompt, completion and the tool's tokens as the new prompt (grpo_trainer.py 1.16.0, `_tool_call_loop`). A `rollout_func` calls whatever
it likes, and gives prompts, completions and, in `env_mask`, which of their tokens are the model's. With vLLM its engine is asked in the
place of `generate`. Nothing waits for the device: what is compared is fetched with the numbers of the rollout, and compared when it has
arrived.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.joined_values import fields_of
from rlstep_hooks.observe.token_origins import join
from rlstep_hooks.observe.turn_rows import Request, Row, RowRule
from rlstep_hooks.record.events import RolloutValues
from rlstep_hooks.systems.trl.observe.engine_answers import engine_calls
from rlstep_hooks.systems.trl.observe.generated import SEVERAL_TURNS
from rlstep_hooks.systems.trl.observe.sampled_log_probs import SampledLogProbs
from rlstep_hooks.systems.trl.observe.tools_used import Spoken, ToolWatch, Written
from rlstep_hooks.systems.trl.releases import TrlRelease

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.observe.numbers import Values
    from rlstep_hooks.session.recorder import Recorder

_LARGEST = 1 << 24
"""Token ids below it are exact in float32, in which numbers are fetched."""


class TurnsWatch:
    """Keeps the turns of one rollout from their generation until the rollout is complete.

    Args:
        trainer: The live trainer.
        version: The release of TRL.
        engine: Whether an engine samples.
    """

    def __init__(self, trainer: Any, recorder: Recorder, *, version: str, engine: bool) -> None:
        self._trainer = trainer
        self.recorder = recorder
        """The recorder that events go to."""
        self._several = any(getattr(trainer, name, None) for name in SEVERAL_TURNS)
        self._engine = engine_calls(trainer) if engine else None
        self._why_not = _why_not(trainer, version) if self._several else ""
        if self._several and engine and self._engine is None:
            self._why_not = self._why_not or "the engine is asked in another way than those that were read"
        self._looks = False
        self._seen: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        """What each call had and gave: the prompts, the mask of their tokens, the prompts with completions, and the log-probs
        with which these were drawn, nan where they are not known."""
        self._told: list[list[Request]] = []
        """What the engine was asked for and gave in each call."""
        self._draws: SampledLogProbs | None = None
        """Takes the log-probs of the tokens of one call, where a rollout function hands over its own."""
        self._takes_draws = False
        self._handed: list[list[float]] | None = None
        """The log-probs that a rollout function handed over."""
        self._tools = ToolWatch(trainer, recorder)

    @property
    def spoken(self) -> Spoken:
        """What policy and tools said in each sample of the rollout that is being made, and its environment."""
        return self._tools.spoken

    def attach(self, hooks: Hooks) -> None:
        """Place the hooks: `generate` of transformers takes `input_ids` and returns sequences that begin with them (5.23.0)."""
        if not self._several:
            return
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        if not self._why_not and self._engine is None and not callable(getattr(model, "generate", None)):
            self._why_not = "the model has no generate of transformers"
        if self._why_not:
            self.recorder.cannot("mask", self._why_not)
            return
        self._tools.attach(hooks)
        of_function = getattr(self._trainer, "rollout_func", None) is not None
        if of_function:
            hooks.wrap(self._trainer, "rollout_func", after=self._hands_over, topics=("mask",))
        if self._engine is not None:
            hooks.wrap(self._engine.owner, "generate", after=self._answers, topics=("mask",))
        if self._engine is None or of_function:  # which may ask either
            self._attach_to(model, hooks, draws=of_function)

    def _attach_to(self, model: Any, hooks: Hooks, *, draws: bool) -> None:
        """Place the hooks on the policy; with `draws` those too that tell with which log-probs it draws."""
        if not callable(getattr(model, "generate", None)):
            return
        hooks.wrap(model, "generate", after=self._generates, topics=("mask",))
        if not draws:
            return
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        if hasattr(inner, "_get_logits_processor"):  # as in `GeneratedWatch`
            self._draws = SampledLogProbs(self._trainer, self.recorder)
            hooks.wrap(model, "generate", before=self._begins_to_draw, topics=("mask",))
            hooks.wrap(inner, "_get_logits_processor", after=self._has_processors, topics=("mask",))

    def begin(self, *, looks: bool, log_probs: bool) -> None:
        """A rollout begins; its turns are kept if `looks`, and the log-probs with which they are drawn too if `log_probs`."""
        self._takes_draws, self._handed = log_probs, None
        self._looks, self._seen, self._told = looks and self._several and not self._why_not, [], []
        self._tools.begin(looks=self._looks)

    def _hands_over(self, call: Call) -> None:
        if self._looks and isinstance(call.result, dict) and isinstance(call.result.get("logprobs"), list):
            self._handed = [[math.nan if one is None else float(one) for one in row] for row in call.result["logprobs"]]

    def _begins_to_draw(self, call: Call) -> None:
        if self._draws is not None:
            self._draws.begin(looks=self._looks and self._takes_draws)

    def _has_processors(self, call: Call) -> None:
        if self._looks and self._draws is not None:
            self._draws.see(call.result)

    def _drawn(self, given: Tensor) -> Tensor:
        """(N, L): the log-probs with which completions were drawn, nan where they are not known."""
        found = self._taken_draws(given)
        return torch.full(given.shape, torch.nan, device=given.device) if found is None else found.float()

    @contained("mask")
    def _taken_draws(self, given: Tensor) -> Tensor | None:
        return None if self._draws is None else self._draws.take(given)

    def _generates(self, call: Call) -> None:
        if not self._looks:
            return
        asked = call.kwargs.get("input_ids", call.argument("inputs", 0))
        given = getattr(call.result, "sequences", call.result)
        if not isinstance(asked, Tensor) or not isinstance(given, Tensor) or asked.dim() != 2 or given.dim() != 2:
            return
        mask = call.kwargs.get("attention_mask")
        real = mask.clone() if isinstance(mask, Tensor) and mask.shape == asked.shape else torch.ones_like(asked)
        # A generation may return several sequences for each prompt, one after the other.
        copies = given.shape[0] // max(asked.shape[0], 1)
        asked, real = (each.repeat_interleave(copies, 0) if copies > 1 else each.clone() for each in (asked, real))
        if given.shape[0] == asked.shape[0]:
            self._seen.append((asked, real, given.clone(), self._drawn(given[:, asked.shape[1] :])))

    def _answers(self, call: Call) -> None:
        if not self._looks or self._engine is None:
            return
        requests = self._engine.read(call)
        if requests:
            self._told.append(requests)

    def take(self, index: int, parts: list[dict[str, Any]]) -> tuple[JoinedTurns, Tensor] | None:
        """What is to be compared of a rollout, and how; None where nothing is.

        Args:
            index: The rollout.
            parts: The tensors of the rollout by TRL's names.
        """
        [part, *others] = parts
        looks, seen, self._looks, self._seen = self._looks, self._seen, False, []
        told, self._told = self._told, []
        handed, self._handed = self._handed, None
        written = self._tools.take() if looks else {}
        names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
        if others or not looks or not (seen or told) or not all(isinstance(part.get(name), Tensor) for name in names):
            return None
        tool_mask = part.get("tool_mask")
        trained = part["completion_mask"] if tool_mask is None else part["completion_mask"] * tool_mask
        sampling = part.get("sampling_per_token_logps")
        own = torch.full(trained.shape, torch.nan, device=trained.device) if sampling is None else sampling
        blocks = [*(part[name] for name in names), trained, own, *(block for of_call in seen for block in of_call)]
        if any(block.device != blocks[0].device for block in blocks):
            return None
        vector = torch.cat([block.reshape(-1).float() for block in blocks])
        shapes = tuple((int(block.shape[0]), int(block.shape[1])) for block in blocks)
        float32 = None if handed is None else [torch.tensor(row, dtype=torch.float32).tolist() for row in handed]
        meaning = JoinedTurns(
            index,
            shapes,
            self._rule(),
            frozenset(_ends(self._trainer)),
            compares=sampling is not None,
            handed=float32,
            told=told,
            written=written,
        )
        return meaning, vector

    def _rule(self) -> RowRule:
        trainer = self._trainer
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)

        def decode(ids: list[int]) -> str:
            return str(tokenizer.decode([int(one) for one in ids], skip_special_tokens=False))

        return RowRule(
            decode=decode,
            longest=trainer.max_completion_length,
            closers=frozenset((*_ends(trainer), tokenizer.pad_token_id)),
            masks_truncated=bool(trainer.args.mask_truncated_completions),
            exact=getattr(trainer, "rollout_func", None) is None,
            hands_over=self._engine is not None and getattr(trainer, "rollout_func", None) is None,
        )


def _ends(trainer: Any) -> list[int]:
    return list(trainer.eos_token_ids)


def _why_not(trainer: Any, version: str) -> str:
    """Why turns are not joined with rows; empty where they are."""
    if not TrlRelease(version, "").since("1.16"):
        return "several turns are joined in TRL 1.16 and later"
    if trainer.accelerator.num_processes > 1:
        return "turns are joined in runs of one process"
    if getattr(trainer, "use_transformers_continuous_batching", False):
        return "with continuous batching of transformers, the tokens of several turns are not seen"
    vocabulary = len(getattr(trainer.processing_class, "tokenizer", trainer.processing_class))
    return "" if vocabulary < _LARGEST else "token ids are too large"


class JoinedTurns(msgspec.Struct, frozen=True):
    """What the numbers of one rollout mean: its rows, and the turns that were sampled for them."""

    index: int
    shapes: tuple[tuple[int, int], ...]
    """Shapes of the tensors in the order in which they follow each other: prompts, their mask, completions, their mask, what is
    trained of them, their log-probs; then of each call prompts, mask, sequences, log-probs."""
    rule: RowRule
    ends: frozenset[int]
    """Tokens that end a turn."""
    compares: bool = False
    """Whether the loss gets log-probs of the sampling."""
    handed: list[list[float]] | None = None
    """The log-probs that a rollout function handed over."""
    told: list[list[Request]] = []
    """What an engine was asked for and gave, call by call."""
    written: dict[int, Written] = {}
    """What tools wrote into samples."""

    @property
    def of(self) -> Values:
        """The class of values whose fields the numbers are: those of a rollout."""
        return RolloutValues

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """Compare."""
        blocks = list(_blocks(numbers, self.shapes))
        rows = [self._row(place, *of_row) for place, of_row in enumerate(zip(*blocks[:6], strict=True))]
        calls = self.told + [
            [self._request(*of_request) for of_request in zip(*blocks[place : place + 4], strict=True)]
            for place in range(6, len(blocks), 4)
        ]
        if self.rule.exact and len(calls[0]) != len(rows):
            return {}  # Samples were left out, or are those of another rollout: which row is whose is not known.
        fields = fields_of(join(calls, rows, self.rule))
        return {self.index: fields} if fields else {}

    def _row(self, place: int, *blocks: list[float]) -> Row:
        prompt, real, ids, mask, trained, own = blocks
        length = sum(map(bool, mask))
        written = self.written.get(place, Written())
        return Row(
            prompt=_kept(prompt, real),
            completion=_whole(ids[:length]),
            trained=[int(bool(one)) for one in trained[:length]],
            log_probs=own[:length] if self.compares else None,
            handed=None if self.handed is None else self.handed[place],
            between=written.between,
            wrong=written.wrong,
            said=written.said,
            read=written.read,
        )

    def _request(self, asked: list[float], real: list[float], sequence: list[float], log_probs: list[float]) -> Request:
        given = sequence[len(asked) :]
        end = next((place for place, one in enumerate(given) if one in self.ends), len(given))
        return Request(_kept(asked, real), _whole(given[: end + 1]), log_probs[: end + 1])


def _kept(ids: list[float], real: list[float]) -> list[int]:
    return [int(one) for one, is_real in zip(ids, real, strict=True) if is_real]


def _whole(ids: list[float]) -> list[int]:
    return [int(one) for one in ids]


def _blocks(numbers: list[float], shapes: tuple[tuple[int, int], ...]) -> Iterator[list[list[float]]]:
    """The rows of each tensor."""
    start = 0
    for rows, wide in shapes:
        yield [numbers[start + row * wide : start + (row + 1) * wide] for row in range(rows)]
        start += rows * wide
