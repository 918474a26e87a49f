"""What TRL's own tests load from the hub, made here: tiny models in the layout of the hub's cache, and the rows of its test sets.

    python local_hub.py FOLDER CHECKOUT      makes both; HF_HOME=FOLDER HF_HUB_OFFLINE=1 finds the models

The rows come from the script in the checkout that makes the published sets; it is run with its upload taken away. `pytest -p local_hub`
puts them in the place of `load_dataset`. This file imports nothing of this package and is loaded by its own name: a foreign suite has a
package `tests` of its own.
"""

from __future__ import annotations

import os
import runpy
import string
import sys
from itertools import product
from pathlib import Path
from typing import Any

OWNER = "trl-internal-testing"
ROWS = "rows"
"""Folder of the test sets, beside the hub's cache."""

_QWEN2, _LLAMA = {"architecture": "qwen2"}, {"architecture": "llama"}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MODELS: dict[str, dict[str, Any]] = {
    "tiny-Qwen2ForCausalLM-2.5": _QWEN2,
    "small-Qwen2ForCausalLM-2.5": _QWEN2,
    "tiny-LlamaForCausalLM-3.2": _LLAMA,
    "tiny-Qwen3ForCausalLM": {"architecture": "qwen3", "head_dim": 8},
    "small-Qwen3ForCausalLM": {"architecture": "qwen3", "head_dim": 8},
    "tiny-Qwen3MoeForCausalLM": {"architecture": "qwen3_moe", "head_dim": 8, **_EXPERTS},
    "tiny-Gemma2ForCausalLM": {"architecture": "gemma2", "head_dim": 8},
    "tiny-Cohere2ForCausalLM": {"architecture": "cohere2"},
    "tiny-MistralForCausalLM-0.2": {"architecture": "mistral", "head_dim": 8},
    "tiny-GPTNeoXForCausalLM": {"architecture": "gpt_neox"},
    "tiny-GptOssForCausalLM": {
        "architecture": "gpt_oss", "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "tiny-Qwen2ForSequenceClassification-2.5": {**_QWEN2, "num_labels": 1},
    "tiny-LlamaForSequenceClassification-3.2": {**_LLAMA, "num_labels": 1},
    "tiny-Qwen3ForSequenceClassification": {"architecture": "qwen3", "head_dim": 8, "num_labels": 1},
}  # fmt: skip
"""Name -> its settings; those with `num_labels` score text."""

VOCABULARY = 4096
"""So many tokens that eight sampled ones hardly ever hold the end of the text, on which some tests rely."""
TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def tokenizer() -> Any:
    """A byte-level tokenizer with Qwen's special tokens and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|finetune_right_pad_id|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = ("".join(pair) for pair in product(string.ascii_letters + string.digits, repeat=2))
    known = [*alphabet, *pairs][: VOCABULARY - len(special)]
    made = Tokenizer(models.BPE({token: index for index, token in enumerate(known)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(special)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<|endoftext|>", eos_token="<|im_end|>", padding_side="left"
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def make_models(folder: Path) -> None:
    """Write all models into a folder, as the hub's cache holds them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    words = tokenizer()
    for name, settings in MODELS.items():
        torch.manual_seed(0)
        more = {key: value for key, value in settings.items() if key != "architecture"}
        try:
            config = AutoConfig.for_model(
                settings["architecture"],
                vocab_size=len(words),
                hidden_size=8,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=4096,
                pad_token_id=words.pad_token_id,
                eos_token_id=words.eos_token_id,
                bos_token_id=None,
                **more,
            )
            kind = AutoModelForSequenceClassification if "num_labels" in more else AutoModelForCausalLM
            model = kind.from_config(config)
        except Exception as error:  # noqa: BLE001 - a release of transformers may lack a model; its tests then fail in both runs
            print(f"{name} cannot be made: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        place = folder / "hub" / f"models--{OWNER}--{name}"
        snapshot = place / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(snapshot)
        words.save_pretrained(snapshot)
        (place / "refs").mkdir(exist_ok=True)
        (place / "refs" / "main").write_text("0" * 40)


def make_rows(folder: Path, checkout: Path) -> None:
    """Write the set "zen" in all its forms, made by the checkout's own script."""
    from datasets import DatasetDict

    def keep(made: DatasetDict, repo_id: str, config_name: str, **_: Any) -> None:
        made.save_to_disk(str(folder / ROWS / repo_id / config_name))

    DatasetDict.push_to_hub = keep
    script = runpy.run_path(str(checkout / "scripts" / "generate_zen_dataset.py"))
    script["main"](test_size=0.1, push_to_hub=True, repo_id=f"{OWNER}/zen")


def rows(path: str, name: str | None = None, split: str | None = None, streaming: bool = False, **_: Any) -> Any:
    """What `load_dataset` gives for the sets that were made; every other set is not here."""
    from datasets import DatasetDict, IterableDatasetDict

    place = Path(os.environ["HF_HOME"], ROWS, path, name or "")
    if name is None or not place.is_dir():
        raise ConnectionError(f"{path} ({name}) is not made here")
    made = DatasetDict.load_from_disk(str(place))
    found: Any = (
        IterableDatasetDict({part: one.to_iterable_dataset() for part, one in made.items()}) if streaming else made
    )
    return found if split is None else found[split.partition("[")[0]]


def pytest_configure() -> None:
    """Put `rows` in the place of `load_dataset` before the tests import it, and say that the CPU is meant: bf16, the default, asks."""
    import datasets
    from transformers import TrainingArguments

    datasets.load_dataset = rows
    checked = TrainingArguments.__post_init__

    def on_cpu(arguments: Any) -> None:
        arguments.use_cpu = True
        checked(arguments)

    TrainingArguments.__post_init__ = on_cpu


if __name__ == "__main__":
    make_models(Path(sys.argv[1]))
    make_rows(Path(sys.argv[1]), Path(sys.argv[2]))
