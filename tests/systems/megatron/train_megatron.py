"""Run by test_megatron on each of two ranks: loops of one's own over megatron-core's model, wrapper and optimizer.

One case is trained after another, and what each one's audit says is left in a file.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from tests.systems.megatron import cpu_for_cuda

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report

SAMPLES, LENGTH, VOCABULARY, UPDATES, MICROBATCHES, ROLLOUTS = 12, 6, 24, 2, 3, 2


class Loop:
    """Policy gradients on random tokens, taken apart so that a case can break one piece of it.

    Args:
        words: Words of the case: `dist` for the distributed optimizer, `bf16`, `overlap` for a reduction within the backward pass.
        rank: This process.
    """

    def __init__(self, words: set[str], rank: int) -> None:
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.models.gpt.gpt_model import GPTModel
        from megatron.core.transformer.transformer_config import TransformerConfig

        self.rank = rank
        reduced = "bf16" in words
        torch.manual_seed(0)
        config = TransformerConfig(
            num_layers=2,
            hidden_size=16,
            num_attention_heads=2,
            use_cpu_initialization=True,
            attention_dropout=0.0,
            hidden_dropout=0.0,
            bf16=reduced,
            params_dtype=torch.bfloat16 if reduced else torch.float32,
            gradient_accumulation_fusion=False,
            calculate_per_token_loss="tokens" in words,
        )
        model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=VOCABULARY, max_sequence_length=LENGTH)
        self.model, self.optimizer = self.wrapped(words, config, model.bfloat16() if reduced else model)
        self.mask = torch.ones(1, 1, LENGTH, LENGTH).triu(1).bool()
        self.places = torch.arange(LENGTH)

    def wrapped(self, words: set[str], config: Any, model: Any) -> tuple[Any, Any]:
        """The model as the loop calls it, and its optimizer."""
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        of_wrapper = DistributedDataParallelConfig(
            use_distributed_optimizer="dist" in words,
            grad_reduce_in_fp32=True,
            overlap_grad_reduce="overlap" in words,
            bucket_size=2000,
        )
        wrapper = DistributedDataParallel(config, of_wrapper, model)
        of_optimizer = OptimizerConfig(
            optimizer="adam", lr=1e-2, bf16="bf16" in words, use_distributed_optimizer="dist" in words, clip_grad=0.05
        )
        return wrapper, get_megatron_optimizer(of_optimizer, [wrapper])

    def log_probs(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, T - 1), of the tokens after the first."""
        logits = self.model(tokens, self.places.expand(len(tokens), -1), self.mask)[:, :-1].float()
        return logits.log_softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2)

    def run(self, folder: Path) -> Report:
        """Train; the report of this rank."""
        import rlstep_hooks

        plan = rlstep_hooks.Schedule.ppo(
            actors=SAMPLES, steps=1, minibatches=UPDATES, microbatches=MICROBATCHES, rollouts=ROLLOUTS
        )
        torch.manual_seed(1 + self.rank)
        with rlstep_hooks.audit(
            plan, optimizer=self.optimizer, model=self.model, log_dir=folder, listeners=()
        ) as audit:
            for _ in range(ROLLOUTS):
                with audit.rollout(samples=SAMPLES), torch.no_grad():
                    tokens, advantages = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH)), torch.randn(SAMPLES, 1)
                    old = self.log_probs(tokens)
                    audit.refresh(old)
                for minibatch in torch.arange(SAMPLES).chunk(UPDATES):
                    self.clear()
                    for number, chosen in enumerate(minibatch.chunk(MICROBATCHES)):
                        new = self.log_probs(tokens[chosen])
                        audit.microbatch(indices=chosen, old_logprobs=old[chosen], new_logprobs=new)
                        loss = -((new - old[chosen]).exp() * advantages[chosen]).mean() / MICROBATCHES
                        with self.synchronised(last=number == MICROBATCHES - 1):
                            loss.backward()
                        self.after_backward(number)
                    self.finalize()
                    self.optimizer.step()
        return audit.report

    def clear(self) -> None:
        """Clear gradients."""
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()

    def synchronised(self, *, last: bool) -> Any:
        """Around a backward pass: gradients are reduced in the last one only."""
        import contextlib

        return contextlib.nullcontext() if last else self.model.no_sync()

    def after_backward(self, number: int) -> None:
        """Behind each backward pass."""

    def finalize(self) -> None:
        """Reduce gradients."""
        from megatron.core.distributed import finalize_model_grads

        finalize_model_grads([self.model])


class NotFinalized(Loop):
    """Nobody reduces."""

    def finalize(self) -> None:
        """Nothing."""


class Sum(Loop):
    """Gradients are added up and not divided by the number of ranks."""

    def finalize(self) -> None:
        """Reduce without the factor."""
        for group in self.model.bucket_groups:
            for bucket in group.buckets:
                bucket.gradient_scaling_factor = 1.0
        super().finalize()


class Dropped(Loop):
    """On rank 1 the first micro-batch of each update is lost."""

    def after_backward(self, number: int) -> None:
        """Clear what came."""
        if self.rank == 1 and number == 0:
            self.model.zero_grad_buffer()


class ZeroRank(Loop):
    """The gradients of rank 1 become zero before they are reduced."""

    def finalize(self) -> None:
        """Reduce zeros."""
        if self.rank == 1:
            for buffer in self.model.buffers:
                buffer.grad_data.zero_()
        super().finalize()


class Tokens(Loop):
    """Gradients are divided by the tokens of all ranks, as megatron-core does it with `calculate_per_token_loss`."""

    def finalize(self) -> None:
        """Reduce, and divide."""
        from megatron.core.distributed import finalize_model_grads

        finalize_model_grads([self.model], torch.tensor(float(SAMPLES)))


class OfTorch(Loop):
    """The same model in torch's own wrapper, with torch's optimizer."""

    def wrapped(self, words: set[str], config: Any, model: Any) -> tuple[Any, Any]:
        """The model as the loop calls it, and its optimizer."""
        return torch.nn.parallel.DistributedDataParallel(model), torch.optim.Adam(model.parameters(), lr=1e-2)

    def clear(self) -> None:
        """Clear gradients."""
        self.optimizer.zero_grad()

    def finalize(self) -> None:
        """The wrapper has reduced already; the loop clips."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)


class NeverSynchronised(OfTorch):
    """torch's wrapper is told at each forward that more backward passes come."""

    def log_probs(self, tokens: torch.Tensor) -> torch.Tensor:
        """The same, and nothing is reduced after it."""
        with self.model.no_sync():
            return super().log_probs(tokens)


LOOPS = {
    "torch": OfTorch,
    "unsynchronised": NeverSynchronised,
    "unfinalized": NotFinalized,
    "sum": Sum,
    "dropped": Dropped,
    "zero": ZeroRank,
    "tokens": Tokens,
}


def main(folder: Path, cases: list[str]) -> None:
    """Train each case on this rank."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cpu_for_cuda.stand_in()
    distributed.init_process_group("gloo")
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel()
    rank = int(os.environ["RANK"])
    results = {}
    for case in cases:
        words = set(case.split("-"))
        kind = next((kind for word, kind in LOOPS.items() if word in words), Loop)
        report = kind(words, rank).run(folder / case)
        results[case] = {
            "verdict": report.verdict,
            "findings": [[f.code, f.severity, f.where.rank, f.where.update, f.observed] for f in report.findings],
            "rules": {rule.code: rule.verdict for rule in report.rules},
            "not_evaluated": report.not_evaluated,
            "processes": report.processes,
            "updates": report.counts.updates,
        }
    (folder / f"rank{rank}.json").write_text(json.dumps(results))
    distributed.destroy_process_group()


main(Path(sys.argv[1]), sys.argv[2:])
