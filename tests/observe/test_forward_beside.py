"""Rows that go through a model beside a forward of it whose weights are there for no longer than each module's own forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rlstep_hooks.observe.clean_forward import PADDING_ATTENDED, row_of  # noqa: E402
from rlstep_hooks.observe.forward_beside import Beside, RowsBeside, replaced_forwards, why_not_beside  # noqa: E402
from rlstep_hooks.observe.guard import Guard  # noqa: E402
from rlstep_hooks.observe.scored_beside import PlacedRow, ScoringBeside  # noqa: E402
from rlstep_hooks.observe.slope_beside import SlopeBeside, slope_by  # noqa: E402
from rlstep_hooks.testing.tiny_trl import tiny_architecture, tiny_model, tiny_tokenizer  # noqa: E402
from tests.observe.smaller_gradients import Fewer  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.layer_slope import Slope

PROMPT, COMPLETION, ROW = 8, 9, 2


class Refusals:
    """Keeps what cannot be observed."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def cannot(self, what: str, why: str) -> None:
        """Keep it."""
        self.found.append(why)


def gathered_in_turn(model: Any) -> Any:
    """Give each module its weights for its own forward alone; at all other times they are nan."""

    def gather(module: Any, args: Any) -> None:
        for name, weight in module._parameters.items():
            if weight is not None:
                weight.data = module.kept[name].clone()

    def let_go(module: Any, args: Any, output: Any) -> None:
        for weight in module._parameters.values():
            if weight is not None:
                weight.data = torch.full_like(weight, torch.nan)

    for module in model.modules():  # all of them first: embeddings and head may have the same weights
        module.kept = {
            name: weight.detach().clone() for name, weight in module._parameters.items() if weight is not None
        }
    for module in model.modules():
        module.register_forward_pre_hook(gather)
        module.register_forward_hook(let_go)
        let_go(module, None, None)
    return model


def batch() -> tuple[Any, Any]:
    """Tokens and mask of four rows; that of `ROW` has padding before its prompt and behind its completion."""
    torch.manual_seed(1)
    tokens = torch.randint(4, 20, (4, PROMPT + COMPLETION))
    mask = torch.ones_like(tokens)
    mask[ROW, :5] = mask[ROW, PROMPT + 6 :] = 0
    return tokens, mask


def row() -> Any:
    """The row of `batch` that is scored."""
    tokens, mask = batch()
    return row_of(*(of[ROW, part] for part in (slice(PROMPT), slice(PROMPT, None)) for of in (tokens, mask)))


def deep_model() -> Any:
    """A model of several layers."""
    return tiny_model(tiny_tokenizer(), layers=3)


def tiny_mixture() -> Any:
    """A model whose routers have weights and give several tensors each."""
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return MixtralForCausalLM(
        MixtralConfig(vocab_size=32, num_key_value_heads=1, head_dim=8, num_local_experts=4, **sizes)
    ).eval()


@pytest.mark.parametrize("make", [deep_model, tiny_mixture])
def test_rows_get_what_the_whole_model_gives_them(make: Callable[[], Any]) -> None:
    plain, refusals = make(), Refusals()
    model = gathered_in_turn(make())
    tokens, mask = batch()
    assert why_not_beside(model) == ""
    rows, found = RowsBeside(model, row().tokens.unsqueeze(0)), []
    with Beside(model, [rows], Guard(refusals, ("",)), lambda weight, bias: found.append(rows.hidden @ weight.T)):
        model(input_ids=tokens, attention_mask=mask, use_cache=False)
    assert refusals.found == []
    assert torch.equal(found[0], plain(input_ids=row().tokens.unsqueeze(0), use_cache=False).logits)


def tiny_critic() -> Any:
    """A model that gives one number for each token."""
    from transformers import Qwen2ForTokenClassification

    torch.manual_seed(2)
    return Qwen2ForTokenClassification(tiny_architecture(tiny_tokenizer(), layers=3, num_labels=1)).eval()


def test_rows_get_the_values_of_a_critic() -> None:
    plain, refusals = tiny_critic(), Refusals()
    model = gathered_in_turn(tiny_critic())
    tokens, mask = batch()
    assert why_not_beside(model)
    assert why_not_beside(model, model.score) == ""
    rows, found = RowsBeside(model, row().tokens.unsqueeze(0)), []

    def at_head(weight: Any, bias: Any) -> None:
        found.append(torch.nn.functional.linear(rows.hidden, weight, bias))

    with Beside(model, [rows], Guard(refusals, ("",)), at_head, model.score), torch.no_grad():
        model(input_ids=tokens, attention_mask=mask, use_cache=False)
    assert refusals.found == []
    assert torch.equal(found[0], plain(input_ids=row().tokens.unsqueeze(0), use_cache=False).logits)


def test_a_critic_whose_head_is_no_matrix_is_refused() -> None:
    model = tiny_critic()
    assert why_not_beside(model, torch.nn.Sequential()) == "the model's layers and its head are not apart"


def test_adapters_of_parameters_are_no_modules_that_can_be_copied() -> None:
    peft = pytest.importorskip("peft", minversion="0.17")
    usual = {"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    linear = peft.get_peft_model(tiny_model(tiny_tokenizer()), peft.LoraConfig(**usual))
    assert why_not_beside(linear) == ""
    of_parameter = peft.LoraConfig(**usual, target_parameters=["o_proj.weight"])
    assert "changes a parameter anew" in why_not_beside(peft.get_peft_model(tiny_model(tiny_tokenizer()), of_parameter))


def test_padding_that_is_attended_to_is_named() -> None:
    model, refusals = tiny_model(tiny_tokenizer()), Refusals()
    tokens, mask = batch()
    for attention, expected in ((mask, ""), (torch.ones_like(mask), PADDING_ATTENDED)):
        scoring = ScoringBeside(model, 0.9, Guard(refusals, ("",)))
        with scoring.beside([PlacedRow(ROW, row())]), torch.no_grad():
            logits = model(input_ids=tokens, attention_mask=attention, use_cache=False).logits[:, PROMPT - 1 : -1] / 0.9
        log_probs = logits.log_softmax(-1).gather(2, tokens[:, PROMPT:, None]).squeeze(2)
        [scored] = scoring.take()
        gap = scored.gap(log_probs, 1e-6)
        assert (gap.like, gap.mean > 1e-6) == (expected, bool(expected))
    assert refusals.found == []


def slope(change: Any = None, *, teaches_padding: bool = False) -> Slope | None:
    """The slope at the row, of a model to which something was done."""
    model, refusals = gathered_in_turn(tiny_model(tiny_tokenizer(), layers=2)), Refusals()
    if change is not None:
        change(model)
    tokens, mask = batch()
    seen = SlopeBeside(model, row(), ROW, Guard(refusals, ("",)))
    with seen.beside():
        hidden = model.model(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state
    taught = torch.ones_like(mask) if teaches_padding else mask
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                weight.data = module.kept[name].clone()
    (hidden.sin() * taught.unsqueeze(2)).sum().backward()
    assert refusals.found == []
    return seen.slope()


def too_small(model: Any) -> None:
    """The backward pass of a part of the first layer is not that of its forward."""
    part = model.model.layers[0].mlp
    forward = part.forward
    part.forward = lambda hidden: Fewer.apply(forward(hidden))
    assert replaced_forwards(model) == ["layers.0.mlp"]


def test_a_backward_pass_that_is_not_the_slope_is_found() -> None:
    healthy, wrong = slope(), slope(too_small)
    assert healthy is not None
    assert wrong is not None
    assert healthy.gap < 0.003
    assert wrong.gap > 0.03


def test_a_loss_that_teaches_padding_tells_no_slope() -> None:
    assert slope(teaches_padding=True) is None


def test_steps_that_do_not_agree_tell_no_slope() -> None:
    ones, typical = torch.ones(2), torch.tensor(1.0)
    assert slope_by(torch.stack([2 * ones, 4 * ones]), ones, typical) is None
    assert slope_by(torch.zeros(2, 2), torch.zeros(2), torch.tensor(0.0)) is None


def test_what_a_steep_place_may_be_is_no_mistake() -> None:
    ones, typical = torch.ones(2), torch.tensor(1.0)
    assert slope_by(torch.stack([1.5 * ones, 1.501 * ones]), ones, typical) is not None
    assert slope_by(torch.stack([1.5 * ones, 1.52 * ones]), ones, typical) is None
    assert slope_by(torch.stack([1.0081 * ones, 1.008 * ones]), ones, typical) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda layers: setattr(layers.layers[1], "mlp", layers.layers[0].mlp), ""),
        (
            lambda layers: setattr(layers.layers[0], "input_layernorm", layers.layers[0].post_attention_layernorm),
            "used twice",
        ),
    ],
)
def test_modules_that_are_used_twice_are_told_apart_from_others(change: Any, why: str) -> None:
    model, refusals = tiny_model(tiny_tokenizer(), layers=2), Refusals()
    change(model.model)
    tokens, mask = batch()
    rows = RowsBeside(model, row().tokens.unsqueeze(0))
    with Beside(model, [rows], Guard(refusals, ("",))):
        model(input_ids=tokens, attention_mask=mask, use_cache=False)
    assert [why in found for found in refusals.found] == [True] * bool(why)
    assert (rows.hidden is None) == bool(why)
