"""With each chat template that TRL ships, messages and results of tools are read as TRL itself reads them: no healthy run is accused.

The tokenizers are made here: the special tokens of a template, and characters.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version

from tests.systems.trl.conftest import RELEASE

if Version("1.16") > RELEASE:
    pytest.skip("turns are joined in TRL 1.16 and later", allow_module_level=True)

import trl
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import add_response_schema, get_training_chat_template, parse_response

from rlstep_hooks.systems.trl.observe.messages_read import message_of, reader
from rlstep_hooks.systems.trl.observe.tools_used import ToolWatch
from tests.systems.trl.multi_turn import multiply

SHIPPED = Path(trl.__file__).parent / "chat_templates"
NAMES = sorted(path.stem for path in SHIPPED.glob("*.jinja") if "training" not in path.stem)
ENDS = {"llama3": "<|eot_id|>", "glm": "<|endoftext|>", "gptoss": "<|return|>", "gemma": "<eos>"}
"""What a turn ends with, by the beginning of a template's name, where it is not `<|im_end|>`."""
_BAR = "[|\N{FULLWIDTH VERTICAL LINE}]"
_SPECIAL = re.compile(rf"<{_BAR}[^|>\n]+?{_BAR}>|<[a-zA-Z_]+>|</[a-zA-Z_]+>|<[a-z_]+\||\|[a-z_]+>")

QUESTION = [{"role": "user", "content": "what is 3 times 4"}]
CALLS = [{"type": "function", "function": {"name": "multiply", "arguments": {"a": a, "b": a + 1}}} for a in (3, 5)]
ANSWERS: list[dict[str, Any]] = [
    {"role": "assistant", "content": "", "tool_calls": CALLS[:1]},
    {"role": "assistant", "content": "let me see", "tool_calls": CALLS[:1]},
    {"role": "assistant", "content": "", "tool_calls": CALLS},
    {"role": "assistant", "content": "the answer is 12"},
]
RESULTS = [{"role": "tool", "name": "multiply", "content": text} for text in ("12", "{'error': 'not today'}")]


def tokenizer_of(name: str) -> Any:
    """A tokenizer with this template; None where TRL cannot read its answers, so that no tools can be given."""
    template = (SHIPPED / f"{name}.jinja").read_text()
    end = next((of for start, of in ENDS.items() if name.startswith(start)), "<|im_end|>")
    special = sorted({*_SPECIAL.findall(template), "<pad>", end}, key=len, reverse=True)
    characters = [chr(code) for code in range(32, 127)] + ["\n", "\t"]
    made = Tokenizer(models.BPE(vocab={one: place for place, one in enumerate([*special, *characters])}, merges=[]))
    made.decoder = decoders.Fuse()
    made.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in special])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token=end,
        clean_up_tokenization_spaces=False,
        chat_template=template,
    )
    try:
        return add_response_schema(tokenizer)
    except ValueError:
        return None


def training_template(tokenizer: Any) -> str | None:
    """What TRL trains with in the template's place; None where it has nothing else."""
    try:
        return get_training_chat_template(tokenizer)
    except ValueError:
        return None


def said(tokenizer: Any, template: str | None, answer: dict[str, Any]) -> tuple[list[int], list[int]] | None:
    """The tokens of a prompt, and those of this answer behind it; None where the template does not have it so."""
    settings = {"tokenize": True, "return_dict": False, "tools": [multiply], "chat_template": template}
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, **settings)
    try:
        whole = tokenizer.apply_chat_template([*QUESTION, answer], **settings)
    except Exception:  # noqa: BLE001 - Llama's template refuses two calls at once
        return None
    return (prompt, whole[len(prompt) :]) if whole[: len(prompt)] == prompt else None


@pytest.mark.parametrize("name", NAMES)
def test_messages_and_results_are_read_as_trl_reads_them(name: str) -> None:
    tokenizer = tokenizer_of(name)
    if tokenizer is None:
        pytest.skip("TRL refuses tools with this template")
    template = training_template(tokenizer)
    for answer in ANSWERS:
        prompt, ids = said(tokenizer, template, answer) or ([], [])
        for cut in {0, 1, len(ids) // 2}:
            given = ids[: len(ids) - cut]
            own = reader(tokenizer, [multiply])(given, prompt) if given else None
            of_trl = message_of(parse_response(tokenizer, given, prefix=prompt, tools=[multiply])) if given else None
            if own is not None and of_trl is not None:  # what the audit compares
                assert own == of_trl
    trainer: Any = SimpleNamespace(
        processing_class=tokenizer, _tokenizer=tokenizer, chat_template=template, chat_template_kwargs={}, _is_vlm=False
    )
    watch = ToolWatch(trainer, SimpleNamespace())  # type: ignore[arg-type]
    for results in (RESULTS[:1], RESULTS):
        assert watch._behind_call(results) == trl.GRPOTrainer._get_tool_suffix_ids(trainer, results)


def test_enough_templates_are_read() -> None:
    assert sum(tokenizer_of(name) is not None for name in NAMES) >= 15
