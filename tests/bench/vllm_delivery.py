"""What the proof of a weight sync costs where the sync is a real one: TRL's colocate mode, with the real vLLM on the CPU.

`python -m tests.bench.vllm_delivery` needs vLLM and 6 GB of memory, with `1.5B` 12 GB. The model is Qwen2.5-0.5B or 1.5B with random
weights. TRL hands vLLM's model one tensor after another (trl/generation/vllm_generation.py:515, 1.16.0), and so does this.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rlstep_hooks.observe.sync_watch import SyncWatch
from rlstep_hooks.systems.vllm_engine.layout import places_in
from rlstep_hooks.testing.tiny_trl import tiny_tokenizer
from tests.bench.delivery import HIDDEN, INNER, LAYERS, VOCABULARY, Silent, compare
from tests.systems.trl_vllm.run import prepare

SHAPES = {
    "0.5B": {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 14},
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
}
"""Of Qwen2.5's models, as their configurations give them."""


def main(size: str) -> None:
    """Print both times and the share.

    Args:
        size: One of `SHAPES`.
    """
    prepare()
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from vllm import LLM

    shape = Qwen2Config(
        **SHAPES[size], vocab_size=VOCABULARY, num_key_value_heads=2, tie_word_embeddings=True, dtype=torch.bfloat16
    )
    policy = Qwen2ForCausalLM(shape).to(torch.bfloat16).requires_grad_(False)
    with tempfile.TemporaryDirectory() as folder:
        policy.save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
        llm = LLM(str(Path(folder)), dtype="bfloat16", enforce_eager=True, max_model_len=64)
    engine = llm.llm_engine.model_executor.driver_worker.model_runner.model
    watch = SyncWatch(Silent(), lambda: policy, "the engine", places_in(engine, 1))

    def plain() -> None:
        for name, tensor in policy.named_parameters():
            engine.load_weights([(name, tensor)])

    def proved() -> None:
        watch.begin()
        for name, tensor in watch.through(policy.named_parameters(), watch.handed_over):
            engine.load_weights(watch.through([(name, tensor)], watch.arrives))
        watch.end(0)

    print(f"vLLM's own loading of Qwen2.5-{size} in bfloat16")
    compare(plain, proved, len(list(policy.parameters())))


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else "0.5B")
