"""Which prompts a pass may serve, and whether their labels are those of the set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.systems.openrlhf.observe import prompt_rows
from rlstep_hooks.systems.openrlhf.observe.prompts import ServedPrompts

if TYPE_CHECKING:
    from collections.abc import Callable


class Prompts:
    """What OpenRLHF makes of the rows of a file, put into a template and with what `change` does to it."""

    def __init__(self, dataset: list[dict[str, str]], change: Callable[[Prompts], None] = lambda of: None) -> None:
        self.strategy = SimpleNamespace(
            args=SimpleNamespace(data=SimpleNamespace(input_key="input", label_key="label", apply_chat_template=False))
        )
        self.image_key, self.input_template = "images", "Q: {}"
        self.prompts = [self.input_template.format(row["input"]) for row in dataset]
        self.labels = [row["label"] for row in dataset]
        change(self)


def generator(prompts: list[str], labels: list[str] | None = None) -> Any:
    dataset = SimpleNamespace(prompts=prompts, labels=prompts if labels is None else labels)
    return SimpleNamespace(prompts_dataloader=SimpleNamespace(dataset=dataset), _dataloader_iter=None)


def rollout(of: Any, served: ServedPrompts, prompts: str, labels: str = "", *, used_up: bool = False) -> int | None:
    served.begin()
    of._dataloader_iter = object()
    served.dispatched(list(prompts), list(labels or prompts))
    of._dataloader_iter = None if used_up else of._dataloader_iter
    return served.end()


def test_each_pass_serves_each_prompt_as_often_as_the_set_holds_it() -> None:
    of = generator(list("aabc"))
    served = ServedPrompts(of)
    assert rollout(of, served, "ab") == 0
    assert rollout(of, served, "ca", used_up=True) == 0
    assert rollout(of, served, "cb") == 0, "the second pass"
    assert rollout(of, served, "cb") == 2


def test_an_evaluation_is_not_counted() -> None:
    of = generator(list("ab"))
    served = ServedPrompts(of)
    served.dispatched(list("abab"), list("abab"))
    assert rollout(of, served, "ab") == 0


def test_a_label_belongs_to_its_prompt() -> None:
    of = generator(list("abc"), list("123"))
    served = ServedPrompts(of)
    rollout(of, served, "abc", "123")
    found = served.carried(4)
    assert found is not None
    assert (found.rollout, found.compared, found.altered) == (4, 3, {})
    rollout(of, served, "abx", "231")
    found = served.carried(5)
    assert found is not None
    assert found.altered == {"labels": 2, "tokens": 1}
    assert found.names == ("tokens", "labels")


def test_a_set_without_text_is_not_counted() -> None:
    of = generator([])
    served = ServedPrompts(of)
    assert rollout(of, served, "ab") is None
    assert served.carried(0) is None


@pytest.mark.parametrize(
    ("change", "altered"),
    [
        (lambda of: None, {}),
        (lambda of: setattr(of, "labels", [*of.labels[1:], of.labels[0]]), {"labels": 4}),
        (lambda of: setattr(of, "prompts", [prompt.rstrip("=") for prompt in of.prompts]), {"tokens": 3}),
        (lambda of: setattr(of, "prompts", of.prompts[:2] * 2), {"tokens": 2}),
    ],
)
def test_prompts_and_labels_are_those_of_the_rows(change: Callable[[Prompts], None], altered: dict[str, int]) -> None:
    rows = [{"input": text, "label": label} for text, label in (("1=", "a"), ("2=", "b"), ("3=", "c"), ("4", "d"))]
    patches = Patches()
    prompt_rows.place_hooks(patches, SimpleNamespace(PromptDataset=Prompts))
    try:
        dataset = Prompts(rows, change)
    finally:
        assert patches.restore() == []
    of = SimpleNamespace(prompts_dataloader=SimpleNamespace(dataset=dataset), _dataloader_iter=None)
    served = ServedPrompts(of)
    for rollout in range(2):
        served.begin()
        served.dispatched(dataset.prompts[:2], dataset.labels[:2])
        found = served.carried(rollout)
        assert found is not None
        assert found.altered == ({} if rollout else altered), "told once"
