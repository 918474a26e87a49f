"""Tiny random models in the place of real ones: the same configuration class and tokenizer where they are here, random weights.

A model is made as a folder, and every `from_pretrained` that asks for the real one gets that folder. So the framework's own loading
runs: value heads, reward models, references and adapters are built on it as on the real one.
"""

from __future__ import annotations

import fcntl
import functools
import json
import re
import shutil
from pathlib import Path
from typing import Any

from rlstep_hooks.rehearse.framework import framework
from rlstep_hooks.rehearse.messages import CannotRehearseError, say, settings

_FAMILIES = (
    (r"qwen3.*-a\d+b", "qwen3_moe"),
    (r"qwen-?3", "qwen3"),
    (r"qwen", "qwen2"),
    (r"llama|smollm|vicuna", "llama"),
    (r"mixtral", "mixtral"),
    (r"mistral", "mistral"),
    (r"gemma-?3", "gemma3_text"),
    (r"gemma-?2", "gemma2"),
    (r"gemma", "gemma"),
    (r"phi", "phi3"),
    (r"olmo-?2", "olmo2"),
    (r"olmo", "olmo"),
    (r"granite", "granite"),
    (r"falcon", "falcon"),
    (r"pythia|neox", "gpt_neox"),
    (r"gpt-?2", "gpt2"),
    (r"\bopt-", "opt"),
)
"""Families by what their models are called, for models that are not here."""

_SMALL: dict[str, int] = {
    "hidden_size": 32, "n_embd": 32, "d_model": 32, "intermediate_size": 64, "n_inner": 64, "ffn_dim": 64, "word_embed_proj_dim": 32,
    "num_hidden_layers": 2, "n_layer": 2, "num_attention_heads": 4, "n_head": 4, "num_key_value_heads": 2, "num_kv_heads": 2,
    "head_dim": 8, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "query_pre_attn_scalar": 8, "max_window_layers": 2, "n_positions": 4096,
    "max_position_embeddings": 32768,
}  # fmt: skip
_DERIVED = (
    "layer_types",
    "quantization_config",
    "auto_map",
    "mlp_only_layers",
    "dtype",
    "torch_dtype",
    "transformers_version",
)
"""Left out of a configuration: made again from the small sizes, or about the real weights."""

_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
_ENDS = 1 / 12
"""Probability that a random model ends its completion at a token."""


def place_of(name: str) -> str:
    """The folder of the tiny model in the place of a model; the same name where it is one that the rehearsal wrote.

    Raises:
        CannotRehearseError: There is no tiny model of its kind.
    """
    path = Path(name)
    root = Path(settings().folder)
    config = path / "config.json"
    # The script runs in a folder of links, so it is the file that tells whose model it is.
    if path.is_dir() and (not config.exists() or root in config.resolve().parents):
        return name
    return _made(name)


@functools.cache
def _made(name: str) -> str:
    folder = Path(settings().folder) / "models" / re.sub(r"[^\w./-]", "_", name).strip("/").replace("..", "_")
    folder.mkdir(parents=True, exist_ok=True)
    # Several processes of a launch may ask for the same model at once.
    with open(folder.with_name(folder.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "model.safetensors").exists():
            _write(name, folder)
    return str(folder)


def _write(name: str, folder: Path) -> None:
    """Write the tiny model and its tokenizer; the weights last."""
    from transformers import AutoTokenizer

    config, how = _real_config(name)
    if any(key in config for key in ("vision_config", "audio_config")) or re.search(
        r"-vl\b|vision", name, re.IGNORECASE
    ):
        raise CannotRehearseError(f"{name} reads images or sounds; only models of text are made small")
    own = _copy_tokenizer(name, folder)
    if not own:
        _tokenizer(config["model_type"]).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))  # some tokenizers are found by their model's type
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    (folder / "config.json").write_text(json.dumps(_small(config, tokenizer)))
    _write_weights(folder, tokenizer)
    words = "its own tokenizer" if own else "a tokenizer of bytes with a chat template, because its own is not here"
    say(
        "model",
        f"{name}: a random {config['model_type']} of two layers ({how}), {words}",
        level="replaced",
        tokenizer=own,
    )


def _real_config(name: str) -> tuple[dict[str, Any], str]:
    """The real model's configuration as far as it is here, and where it was found."""
    path = _file_of(name, "config.json")
    if path is not None:
        config = json.loads(path.read_text(encoding="utf-8"))
        if "model_type" in config:
            return config, "its own configuration"
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for pattern, model_type in _FAMILIES:
        if re.search(pattern, name, re.IGNORECASE) and model_type in CONFIG_MAPPING:
            return {"model_type": model_type}, "by its name"
    return {"model_type": "qwen2"}, "in the place of a family that its name does not tell"


def _file_of(name: str, file: str) -> Path | None:
    """A file of a model that is on this machine."""
    if Path(name).is_dir():
        path = Path(name, file)
        return path if path.exists() else None
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        if settings().online:
            return Path(hf_hub_download(name, file))
        found = try_to_load_from_cache(name, file)
    except Exception:  # noqa: BLE001 - a name that no hub can have, or a file that the model lacks
        return None
    return Path(found) if isinstance(found, str) else None


def _copy_tokenizer(name: str, folder: Path) -> bool:
    """Copy the real tokenizer's files; whether they are here."""
    files = (
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
        "tokenizer.model", "chat_template.jinja",
    )  # fmt: skip
    found = {file: path for file in files if (path := _file_of(name, file)) is not None}
    if not {"tokenizer.json", "tokenizer.model", "vocab.json"} & set(found):
        return False
    for file, path in found.items():
        shutil.copyfile(path, folder / file)
    return True


def _tokenizer(model_type: str) -> Any:
    """A tokenizer of bytes with the special tokens and, where the framework ships one, its family's chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({token: index for index, token in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<|endoftext|>", eos_token="<|im_end|>", padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    wrapped.chat_template = framework().template(model_type) or _TEMPLATE
    return wrapped


def _small(config: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """The configuration with small sizes, and with the tokenizer's own special tokens."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[config["model_type"]]
    kept = {name: value for name, value in config.items() if name not in _DERIVED}
    defaults = kind().to_dict()
    small = _SMALL | dict(framework().sizes)
    sizes = {name: size for name, size in small.items() if name in kept or defaults.get(name) is not None}
    ends = {
        "vocab_size": max(len(tokenizer), tokenizer.vocab_size),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    return {**kept, **sizes, **ends}


def _write_weights(folder: Path, tokenizer: Any) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(str(folder))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        if tokenizer.eos_token_id is not None:
            _end_soon(model, tokenizer.eos_token_id)
    model.save_pretrained(folder)


def _end_soon(model: Any, token: int) -> None:
    """Give the model weights with which it ends its completions after about a dozen tokens, some at once.

    A model whose tokens are all as likely would hardly ever end by itself: no completion would be empty or whole. All embeddings get
    one component in common, which the last layer's norm keeps, and the row of the end token in the output reads it.
    """
    import torch

    rows, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    if head is None:
        return
    seen: list[Any] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        rows[:, 0] = 4 * rows.std()
        model.eval()(input_ids=torch.randint(0, rows.shape[0], (2, 16)))
        hook.remove()
        component = float(seen[0][..., 0].mean())
        logits = head(seen[0])
        want = torch.logsumexp(logits, -1).mean() + torch.tensor(_ENDS / (1 - _ENDS)).log() - logits[..., token].mean()
        if abs(component) > 1e-3:
            head.weight[token, 0] += want / component
