"""A tiny model, its tokenizer and rows of sums, made on the spot."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

REWARD_FILE = Path(__file__).with_name("reward.py")


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each character, 128 in all."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz0123456789 .,!?+-=:\n"]
    tokens += [f"<x{index}>" for index in range(len(tokens), 128)]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return fast


def write_model(folder: Path) -> Path:
    """A randomly initialised Qwen2 of 0.1 million parameters in bfloat16, and its tokenizer."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=128,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,  # heads of 32 numbers: vLLM's CPU attention takes no smaller ones
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).to(torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_rows(file: Path, count: int) -> Path:
    """Sums of two digits; the same rows in every run."""
    choose = random.Random(0)
    rows = []
    for index in range(count):
        a, b = choose.randint(0, 9), choose.randint(0, 9)
        rows.append(json.dumps({"input": f"{index:02d} {a}+{b}=", "label": str(a + b)}))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(rows) + "\n")
    return file
