"""Real training in several turns: a tiny model that says what a script has for it, a tokenizer with tools in its template, tools, an
environment and functions of rollouts. The trainer's code is TRL's own: only the test's model gives chosen tokens for sampled ones.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.testing.tiny_trl import tiny_architecture, tiny_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

SPECIAL = (
    *("<pad>", "<|im_start|>", "<|im_end|>", "<|header|>", "<|end_header|>", "<|eot|>", "<|python|>"),
    *("<|user|>", "<|assistant|>", "<|observation|>"),
    *("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|tool_call_begin|>", "<|tool_call_end|>"),
)
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
MERGES = (
    "th",
    "the",
    "an",
    "in",
    "is",
    "er",
    "so",
    "me",
    "to",
    "ol",
    "us",
    "se",
    "as",
    "ss",
    "st",
    "su",
    "um",
    "12",
    "34",
)

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\n' }}"
    "{% if message.role == 'tool' %}{{ '<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{% else %}{{ message.content }}{% endif %}"
    '{% if message.tool_calls %}{% for call in message.tool_calls %}{{ \'<tool_call>\n{"name": "\' + call.function.name + '
    "'\", \"arguments\": ' }}{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""As Qwen 2.5 has it: nothing of earlier turns changes."""
TOLD = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool.function.name }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}" + CHATML
)
"""The same, where the prompt tells of tools."""
THINKING = CHATML.replace(
    "{% else %}{{ message.content }}",
    "{% elif message.role == 'assistant' and loop.index0 < (messages | map(attribute='role') | list | join(' ')).split(' ') | "
    "length - 1 and 'user' in (messages[loop.index0 + 1:] | map(attribute='role') | list) %}"
    "{{ message.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ message.content }}",
)
"""As Qwen 3 has it: thoughts before the latest message of the user are left out."""
HEADERS = (
    "{% for message in messages %}{{ '<|header|>' + ('ipython' if message.role == 'tool' else message.role) + '<|end_header|>\n\n' }}"
    '{% if message.tool_calls %}{% for call in message.tool_calls %}{{ \'<|python|>{"name": "\' + call.function.name + '
    "'\", \"arguments\": ' }}{{ call.function.arguments | tojson }}{{ '}' }}{% endfor %}{% else %}{{ message.content }}{% endif %}"
    "{{ '<|eot|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|header|>assistant<|end_header|>\n\n' }}{% endif %}"
)
"""As Llama 3 has it: headers, an end that is no line, and results of tools from `ipython`."""


ROLES = (
    "{% for message in messages %}{% if message.role == 'user' %}{{ '<|user|>\n' + message.content }}"
    "{% elif message.role == 'assistant' %}{{ '<|assistant|>\n' }}{% if 'user' in (messages[loop.index0 + 1:] | "
    "map(attribute='role') | list) %}{{ message.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ message.content }}"
    '{% endif %}{% if message.tool_calls %}{% for call in message.tool_calls %}{{ \'<tool_call>\n{"name": "\' + '
    "call.function.name + '\", \"arguments\": ' }}{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
    "{% endif %}{% else %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|observation|>' }}{% endif %}"
    "{{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
"""As GLM 4.5 has it: no end of a turn but the role that comes next, and thoughts before the latest message of the user are left out."""
SECTIONS = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ '<|im_system|>tool<|im_middle|>## Return of ' + message.name + "
    "'\n' + message.content }}{% elif message.role == 'user' %}{{ '<|im_user|>user<|im_middle|>' + message.content }}{% else %}"
    "{{ '<|im_assistant|>assistant<|im_middle|>' + message.content }}{% if message.tool_calls %}{% for call in "
    'message.tool_calls %}{{ \'<|tool_call_begin|>{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}<|tool_call_end|>' }}{% endfor %}{% endif %}{% endif %}{{ '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}"
)
"""As Kimi K2 has it: a mark for each role and one behind its name, and results that name their tool."""


def _parsed(*, start: str, call: tuple[str, str], end: str) -> dict[str, Any]:
    """How transformers parses a response."""
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": start,
        "fields": {
            "tool_calls": {
                "open": call[0],
                "close_pattern": call[1],
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": end, "content": "text"},
        },
    }


_OF_CHATML = _parsed(start="<|im_start|>assistant\n", call=("<tool_call>", r"</tool_call>\s*"), end=r"<\|im_end\|>\s*")
_OF_HEADERS = _parsed(
    start="<|header|>assistant<|end_header|>\n\n", call=("<|python|>", r"(?=<\|eot\|>)"), end=r"<\|eot\|>\s*"
)
_OF_ROLES = _parsed(
    start="<|assistant|>\n", call=("<tool_call>", r"</tool_call>\s*"), end=r"<\|(?:user|observation)\|>\s*"
)
_OF_SECTIONS = _parsed(
    start="<|im_assistant|>assistant<|im_middle|>",
    call=("<|tool_call_begin|>", r"<\|tool_call_end\|>\s*"),
    end=r"<\|im_end\|>\s*",
)
KINDS = {
    "Qwen 2.5": (CHATML, "<|im_end|>", _OF_CHATML),
    "Qwen 3": (THINKING, "<|im_end|>", _OF_CHATML),
    "Llama 3": (HEADERS, "<|eot|>", _OF_HEADERS),
    "GLM": (ROLES, "<|user|>", _OF_ROLES),
    "Kimi": (SECTIONS, "<|im_end|>", _OF_SECTIONS),
    "Tools told": (TOLD, "<|im_end|>", _OF_CHATML),
}
"""By kind: template, end of a turn, and how a response is parsed."""
_CALLS = {
    "Llama 3": ("<|python|>", "<|eot|>"),
    "GLM": ("<tool_call>\n", "\n</tool_call><|observation|>"),
    "Kimi": ("<|tool_call_begin|>", "<|tool_call_end|><|im_end|>"),
}
"""What stands around a call of a tool, where it is not as in Qwen."""
_RESULTS = {"Llama 3": "ipython", "Kimi": "## Return of"}
"""What each result of a tool has once, where it is not as in Qwen."""


def chat_tokenizer(kind: str = "Qwen 2.5") -> Any:
    """Characters, a few merges, and the special tokens of all kinds: the same text can be written in several tokens."""
    characters = [chr(code) for code in range(32, 127)] + ["\n"]
    vocabulary = {token: place for place, token in enumerate([*SPECIAL, *MARKS, *characters, *MERGES])}
    merges = [(merge[:-1], merge[-1]) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKS])
    template, end, parsed = KINDS[kind]
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token=end,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )
    made.response_template = parsed
    return made


class ScriptedModel(Qwen2ForCausalLM):  # type: ignore[misc]
    """Says what its script has for a prompt's text and the place of the sample among those that are asked together."""

    script: Any = None
    tokenizer: Any = None

    def generate(self, input_ids: Any = None, **settings: Any) -> Any:
        """Generate as transformers does, with the script's tokens in the place of the drawn ones; without a script, just so."""
        drawn = super().generate(input_ids, **settings)
        if self.script is None:
            return drawn
        given = [
            self.script(self.tokenizer.decode(row[row != self.tokenizer.pad_token_id]), place)
            for place, row in enumerate(input_ids)
        ]
        longest = (
            settings["generation_config"].max_new_tokens if "generation_config" in settings else max(map(len, given))
        )
        wide = min(max(map(len, given)), longest)
        padded = [(ids + [self.tokenizer.pad_token_id] * wide)[:wide] for ids in given]
        return torch.cat([input_ids, torch.tensor(padded)], 1)


def scripted_model(tokenizer: Any, script: Callable[[str, int], list[int]] | None) -> ScriptedModel:
    """A random model of one layer with a script."""
    torch.manual_seed(0)
    architecture = tiny_architecture(tokenizer, hidden_size=16, tie_word_embeddings=True)
    architecture.max_position_embeddings = 2048
    model = ScriptedModel(architecture)
    model.script, model.tokenizer = script, tokenizer
    if tokenizer.eos_token == "<|user|>":  # as in GLM, whose calls end with what their results begin with
        model.generation_config.eos_token_id = list(tokenizer.convert_tokens_to_ids(["<|user|>", "<|observation|>"]))
    return model


def call_text(kind: str, name: str, **arguments: Any) -> str:
    """A call of a tool, as a model of this kind writes it, with its end."""
    call = json.dumps({"name": name, "arguments": arguments})
    before, behind = _CALLS.get(kind, ("<tool_call>\n", "\n</tool_call><|im_end|>"))
    return before + call + behind


def answer_text(kind: str, text: str) -> str:
    """An answer with its end."""
    return text + KINDS[kind][1]


def spelled(tokenizer: Any, text: str) -> list[int]:
    """The text in tokens without merges, as a policy may sample it and no encoding gives it."""
    pieces = []
    while text:
        mark = next((mark for mark in (*SPECIAL, *MARKS) if text.startswith(mark)), text[0])
        pieces.append(mark)
        text = text[len(mark) :]
    return list(tokenizer.convert_tokens_to_ids(pieces))


def conversations(count: int) -> Any:
    """Prompts of one message."""
    return Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"the sum of {i} and {3 * i}"}] for i in range(count)]}
    )


def text_reward(completions: Sequence[Any], **others: Any) -> list[float]:
    """A checksum of what was said."""
    return [float(zlib.crc32(str(completion).encode()) % 7) for completion in completions]


def multiply(a: int, b: int) -> str:
    """Multiplies two numbers.

    Args:
        a: One.
        b: The other.

    Returns:
        Their product.
    """
    return str(a * b)


async def multiply_later(a: int, b: int) -> str:
    """Multiplies two numbers.

    Args:
        a: One.
        b: The other.

    Returns:
        Their product.
    """
    return str(a * b)


class Room:
    """An environment with one tool."""

    def reset(self, **row: Any) -> str:
        """Begin."""
        self.steps = 0
        return " in the room"

    def look(self, place: str) -> str:
        """Looks at a place.

        Args:
            place: Where.

        Returns:
            What is there.
        """
        self.steps += 1
        return f"a stone at {place}, step {self.steps}"


def talkative(
    kind: str, tokenizer: Any, *, calls: int = 1, tool: str = "multiply", some: bool = False
) -> Callable[[str, int], list[int]]:
    """A script that calls a tool so many times and then answers, in tokens that no encoding gives; with `some`, each second sample
    answers at once."""
    result = _RESULTS.get(kind, "<tool_response>")
    count = iter(range(10**9))

    def script(text: str, place: int) -> list[int]:
        done = text.count(result)
        if done < calls and not (some and done == 0 and place % 2):
            arguments = {"place": f"the {place}"} if tool == "look" else {"a": 12 + place + done, "b": 34}
            return spelled(tokenizer, call_text(kind, tool, **arguments))
        return spelled(tokenizer, answer_text(kind, f"the answer is {next(count)}"))

    return script


def multi_turn_trainer(
    folder: Path,
    *,
    kind: str = "Qwen 2.5",
    script: Callable[..., Callable[[str, int], list[int]] | None] | None = None,
    rows: int = 8,
    callbacks: Sequence[Any] = (),
    tools: Any = None,
    environment_factory: Any = None,
    rollout_func: Any = None,
    script_settings: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """A trainer in several turns, ready to train."""
    import trl

    tokenizer = chat_tokenizer(kind)
    model = scripted_model(tokenizer, (script or talkative)(kind, tokenizer, **(script_settings or {})))
    sizes = {"max_completion_length": 400, "num_generations": 4, "per_device_train_batch_size": 4, "max_steps": 3}
    return trl.GRPOTrainer(
        model=model,
        reward_funcs=text_reward,
        args=tiny_config(folder, **(sizes | settings)),
        train_dataset=conversations(rows),
        processing_class=tokenizer,
        callbacks=list(callbacks),
        tools=tools,
        environment_factory=environment_factory,
        rollout_func=rollout_func,
    )


def multi_turn_run(folder: Path, *, fault: Callable[[Any], None] | None = None, **settings: Any) -> Report:
    """The report of a run in several turns."""
    audit = StepAuditCallback(log_dir=None, listeners=())
    trainer = multi_turn_trainer(folder, callbacks=[audit], **settings)
    if fault is not None:
        fault(trainer)
    trainer.train()
    return audit.report


def log_probs_of(model: Any, asked: list[int], given: list[int]) -> list[float]:
    """Those of the tokens of a turn, at temperature 1."""
    with torch.no_grad():
        logits = model(torch.tensor([asked + given])).logits[0, len(asked) - 1 : -1]
    return list(
        torch.log_softmax(logits.float(), -1).gather(-1, torch.tensor(given).unsqueeze(-1)).squeeze(-1).tolist()
    )


def conversation_rollout(
    *,
    turns: int = 2,
    masked: bool = True,
    again: bool = False,
    whole_template: bool = False,
    log_probs: Callable[[list[float]], list[float]] | None = None,
) -> Callable[[list[Any], Any], dict[str, Any]]:
    """A function of rollouts: the policy speaks, the environment answers, so many times.

    Args:
        turns: Turns of the policy.
        masked: Whether its env_mask leaves out what the environment says.
        again: Whether each turn is decoded and encoded again.
        whole_template: Whether each turn's prompt is the whole conversation in the chat template.
        log_probs: Makes those of a turn that are handed over of the right ones; None for handing over none.
    """

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        tokenizer, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
        found: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "env_mask": [], "logprobs": log_probs and []}
        for place, prompt in enumerate(prompts):
            messages = list(prompt)
            begun = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            ids, mask, values = [], [], []
            for turn in range(turns):
                asked = begun + ids
                if whole_template:
                    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
                given = model.generate(torch.tensor([asked]), generation_config=trainer.generation_config)[
                    0, len(asked) :
                ].tolist()
                if log_probs:
                    values += log_probs(log_probs_of(model, asked, given))
                text = tokenizer.decode(given)
                given = tokenizer.encode(text) if again else given
                ids, mask = ids + given, mask + [1] * len(given)
                messages.append({"role": "assistant", "content": text.removesuffix(tokenizer.eos_token)})
                if turn < turns - 1:
                    messages.append({"role": "user", "content": f"and then {place}"})
                    added = tokenizer.encode(f"\n<|im_start|>user\nand then {place}<|im_end|>\n<|im_start|>assistant\n")
                    ids, mask = ids + added, mask + [0] * len(added)
                    values += [0.0] * len(added)
            found["prompt_ids"].append(begun)
            found["completion_ids"].append(ids)
            if log_probs:
                found["logprobs"].append(values)
            found["env_mask"].append(mask if masked else [1] * len(mask))
        if not masked:
            del found["env_mask"]
        return found

    return rollout


def silent(kind: str, tokenizer: Any) -> None:
    """No script: the policy says what it draws."""


def thoughtful(kind: str, tokenizer: Any) -> Callable[[str, int], list[int]]:
    """A script that thinks before it answers, each time otherwise."""
    count = iter(range(10**9))

    def script(text: str, place: int) -> list[int]:
        number = next(count)
        return spelled(tokenizer, answer_text(kind, f"<think>\nis it {number}\n</think>\n\nthe {number} is so"))

    return script


def speaking(kind: str, tokenizer: Any) -> Callable[[str, int], list[int]]:
    """A script that says something else each time, in tokens that no encoding gives."""
    count = iter(range(10**9))

    def script(text: str, place: int) -> list[int]:
        return spelled(tokenizer, answer_text(kind, f"the {next(count)} is the answer"))

    return script


def encodable(kind: str, tokenizer: Any) -> Callable[[str, int], list[int]]:
    """A script whose answers are in the very tokens that an encoding gives."""
    count = iter(range(10**9))

    def script(text: str, place: int) -> list[int]:
        return list(tokenizer.encode(answer_text(kind, f"the sum is so {next(count)}")))

    return script
