"""An adapter that vLLM was given: requests that use it and requests that do not, as its worker records them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.record.events import AdapterUsed, RunStarted
from rlstep_hooks.record.tail import Tail
from rlstep_hooks.systems.vllm_engine import plugin, worker
from rlstep_hooks.systems.vllm_engine.environment import FOLDER, RUN
from rlstep_hooks.testing.tiny_trl import tiny_architecture, tiny_tokenizer
from tests.scripted import make_plan
from tests.systems.trl_vllm.run import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

prepare()


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Path]]:
    """An engine in this process that takes adapters, and the folder of an adapter; its worker is attached."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2ForCausalLM
    from vllm import LLM

    monkeypatch.setenv(FOLDER, str(tmp_path / "log"))
    monkeypatch.setenv(RUN, "a-run")
    tokenizer = tiny_tokenizer()
    model = Qwen2ForCausalLM(tiny_architecture(tokenizer, hidden_size=64, layers=2, tie_word_embeddings=True))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, tensor in adapted.named_parameters():
            if "lora_B" in name:
                tensor.normal_()
    adapted.save_pretrained(tmp_path / "adapter")
    plugin.setup()
    yield (
        LLM(model=str(tmp_path / "model"), enable_lora=True, max_lora_rank=8, max_model_len=64, max_num_seqs=16),
        tmp_path,
    )
    worker.detach()


def test_an_adapter_that_no_request_uses_is_found(engine: tuple[Any, Path]) -> None:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    llm, folder = engine
    adapter = LoRARequest("policy", 1, str(folder / "adapter"))
    llm.llm_engine.add_lora(adapter)
    asked = SamplingParams(max_tokens=2, temperature=0.0)
    prompts = [{"prompt_token_ids": [5, 6, 7]}] * 16
    (record,) = (folder / "log").glob("a-run.vllm*.jsonl")
    tail = Tail(record)

    llm.generate(prompts, asked, use_tqdm=False)
    (unused,) = [event for event in tail.read() if isinstance(event, AdapterUsed)]
    assert (unused.requests, unused.bound) == (16, 0)
    llm.generate(prompts * 3, asked, lora_request=adapter, use_tqdm=False)
    (used,) = [event for event in tail.read() if isinstance(event, AdapterUsed)]
    assert (used.requests, used.bound) == (64, 48)

    assert [finding.code for finding in judged(unused)] == ["RLS418"]
    assert judged(used) == []
    # q, k and v are one layer of the engine, in each of the two layers of the model; so it is for down.
    assert (used.parts, used.matched, used.empty) == (4, 4, 0)


def forget(manager: Any) -> None:
    """Layers after a sleep that discards them."""
    for layer in manager.modules.values():
        for stacked in getattr(layer, "lora_b_stacked", ()):
            stacked.zero_()


def rename(manager: Any) -> None:
    """An adapter whose names fit no layer."""
    for adapter in manager.list_adapters().values():
        adapter.loras = {f"other.{name}": part for name, part in adapter.loras.items()}


@pytest.mark.parametrize(("fault", "words"), [(forget, "zeros in 4 of 4 layers"), (rename, "parts for 4 layers")])
def test_an_adapter_that_is_not_in_the_layers_is_found(engine: tuple[Any, Path], fault: Any, words: str) -> None:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    llm, folder = engine
    adapter = LoRARequest("policy", 1, str(folder / "adapter"))
    llm.llm_engine.add_lora(adapter)
    fault(llm.llm_engine.model_executor.driver_worker.model_runner.lora_manager._adapter_manager)
    prompts = [{"prompt_token_ids": [5, 6, 7]}] * 16
    llm.generate(prompts, SamplingParams(max_tokens=2, temperature=0.0), lora_request=adapter, use_tqdm=False)
    (record,) = (folder / "log").glob("a-run.vllm*.jsonl")
    (seen,) = [event for event in Tail(record).read() if isinstance(event, AdapterUsed)]
    (finding,) = judged(seen)
    assert finding.code == "RLS418"
    assert words in finding.observed


def judged(event: AdapterUsed) -> list[Any]:
    """What a run is told about these requests."""
    judge = Judge()
    judge.observe(RunStarted(run="a-run", rank=0, world_size=1, schedule=make_plan(rows=36, max_steps=8)))
    return [finding for finding in judge.observe(event) if finding.severity != "info"]
