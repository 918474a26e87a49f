"""What a trainer process keeps of its samples, its gradients and its optimizer, without a launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict

from rlstep_hooks.observe.gathered_gradients import GatheredGradientWatch
from rlstep_hooks.observe.gradient_snapshot import GradientSnapshot
from rlstep_hooks.observe.gradient_watch import Window
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.held_checksums import checksum_of_all
from rlstep_hooks.observe.kept_tensors import KeptTensors
from rlstep_hooks.observe.sharding.replicated import replicated
from rlstep_hooks.observe.weight_sums import TensorSums, moments_of, weights_of
from rlstep_hooks.systems.verl.observe.carried import Carried, PolicyRows
from rlstep_hooks.systems.verl.observe.settings import clip_grad, of_optimizer, of_precision

KEYS = [("a", "0", 1), ("b", "0", 2)]
ROWS = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]


def test_rows_of_known_samples_are_compared_bit_for_bit() -> None:
    carried = Carried()
    assert carried.intact(KEYS, ROWS) is None, "nothing was kept"
    carried.keep(KEYS, ROWS)
    assert carried.intact(KEYS[1:], ROWS[1:]) is True
    assert carried.intact(KEYS, ROWS[::-1]) is False
    assert carried.intact([("c", "0", 3)], ROWS[:1]) is None, "an unknown sample"
    assert carried.intact(KEYS, None) is None
    carried.keep(KEYS, None)
    assert carried.intact(KEYS, ROWS) is None


def weights_intact(change: Any) -> list[bool]:
    """What is recorded of the importance weights of a micro-batch."""
    found: list[bool] = []
    rows = PolicyRows()
    rows.weights.keep(KEYS, ROWS)
    weights = torch.nested.as_nested_tensor(ROWS, layout=torch.jagged)
    data = TensorDict({"rollout_is_weights": weights}, batch_size=[2])
    change(data)
    record: Any = SimpleNamespace(see_weights=lambda intact: found.append(intact))
    rows.compare(data, KEYS, record, fresh=False)
    return found


def test_importance_weights_that_are_lost_on_the_way_are_not_those_that_came() -> None:
    assert weights_intact(lambda data: None) == [True]
    assert weights_intact(lambda data: data["rollout_is_weights"].values().mul_(2)) == [False]
    assert weights_intact(lambda data: data.pop("rollout_is_weights")) == [False]


def model() -> list[tuple[str, torch.nn.Parameter]]:
    torch.manual_seed(0)
    parameters = [(f"layer.{place}", torch.nn.Parameter(torch.randn(5, 3))) for place in range(3)]
    for _, p in parameters:
        p.grad = torch.randn(5, 3)
    return parameters


def off(*used: torch.Tensor) -> float:
    """The largest distance of the gradients that are used, of two tensors, from those that two passes gave in float32."""
    window = Window(0, tuple(map(str, range(len(used)))), (PASSES,) * len(used), used)
    return float(window.compare()[: len(used)].max())


PASSES = tuple(torch.randn(2, 64, generator=torch.Generator().manual_seed(0)))


def test_gradients_that_are_kept_in_a_coarser_dtype_than_they_come_in_have_its_roundings() -> None:
    kept = sum(of.to(torch.bfloat16) for of in PASSES) * 0.25
    assert isinstance(kept, torch.Tensor)
    assert off(kept, kept) < 1
    assert off(kept, kept * 0.5) > 1
    assert off(kept, PASSES[0].to(torch.bfloat16) * 0.25) > 1, "one of two passes"


def of_update(change: Any) -> dict[str, Any]:
    parameters = model()
    watch = GradientSnapshot(parameters)
    watch.made()
    change(dict(parameters))
    watch.before_step(7)
    ((source, numbers),) = watch.work_up()
    (fields,) = source.values(numbers.tolist()).values()
    return fields


def test_a_clip_of_all_gradients_is_no_difference() -> None:
    fields = of_update(lambda of: [p.grad.mul_(0.25) for p in of.values()])
    assert fields["gradient_off"] < 1
    assert abs(fields["gradient_factor"] - 0.25) < 1e-6
    assert "gradient_passes" not in fields, "nothing counts them here, and what another watch counted stays"


def test_one_tensor_that_is_scaled_or_dropped_is_named() -> None:
    halved = of_update(lambda of: of["layer.1"].grad.mul_(0.5))
    assert halved["gradient_off"] > 100
    assert halved["gradient_tensor"] == "layer.1"
    assert abs(halved["gradient_tensor_factor"] - 0.5) < 1e-6

    def drop(of: dict[str, Any]) -> None:
        of["layer.2"].grad = None

    dropped = of_update(drop)
    assert (dropped["gradient_tensor"], dropped["gradient_tensor_factor"]) == ("layer.2", 0.0)


def engine(**config: Any) -> Any:
    settings = {
        "clip_grad": 1.0,
        "weight_decay": 0.01,
        "betas": [0.9, 0.999],
        "override_optimizer_config": None,
        "optimizer": "AdamW",
        "optimizer_impl": "torch.optim",
        "lr": 1e-3,
    } | config
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], weight_decay=0.01, betas=(0.9, 0.999))
    return SimpleNamespace(optimizer=optimizer, optimizer_config=SimpleNamespace(**settings))


def test_an_optimizer_as_configured_has_no_changes() -> None:
    assert of_optimizer(engine(), "critic.optim").changes() == []
    given = engine(betas=[0.5, 0.6], override_optimizer_config={"betas": [0.9, 0.999], "eps": 1e-8})
    assert of_optimizer(given, "critic.optim").changes() == [], "what overrides the others counts"


def test_an_optimizer_that_was_built_otherwise_is_told() -> None:
    built = engine()
    built.optimizer.param_groups[0] |= {"eps": 1e-3, "amsgrad": True}
    changes = of_optimizer(built, "actor.optim").changes()
    assert sorted(changes) == [("actor.optim.amsgrad", False, True), ("actor.optim.eps", 1e-8, 1e-3)]
    another = engine(optimizer="Adam")
    assert ("actor.optim.optimizer", "Adam", "AdamW") in of_optimizer(another, "actor.optim").changes()
    sgd = engine(optimizer="SGD", override_optimizer_config={"momentum": 0.9})
    sgd.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], weight_decay=0.01, momentum=0.9)
    assert of_optimizer(sgd, "actor.optim").changes() == []


def test_tensors_that_are_not_decayed_are_told() -> None:
    split = engine()
    split.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "weight_decay": 0.0})
    assert of_optimizer(split, "actor.optim").changes() == [("actor.optim.weight_decay", 0.01, 0.0)]


def test_an_optimizer_of_somebody_elses_is_compared_by_what_it_is_given() -> None:
    other = engine(optimizer="AdamW8bit", optimizer_impl="bitsandbytes.optim", betas=[0.5, 0.9])
    assert of_optimizer(other, "actor.optim").changes() == [("actor.optim.betas", (0.5, 0.9), (0.9, 0.999))]


def precise(computes: Any, kept: Any, **config: Any) -> list[Any]:
    """The changes of an engine of FSDP that computes and keeps weights in these dtypes."""
    settings = {"strategy": "fsdp2", "mixed_precision": {"param_dtype": "fp32"}, "model_dtype": "fp32"} | config
    module = torch.nn.Linear(2, 2).to(kept)
    adapters = SimpleNamespace(lora_rank=0)
    made = SimpleNamespace(
        module=module, model_config=adapters, engine_config=SimpleNamespace(**settings), _autocast_dtype=computes
    )
    return of_precision(made, "fsdp_config").changes()


def test_the_precision_of_weights_and_forward() -> None:
    single, half = torch.float32, torch.bfloat16
    assert precise(single, single) == []
    assert precise(half, single, mixed_precision=None) == [], "verl's default"
    assert precise(half, half, mixed_precision=None, model_dtype="bf16") == []
    assert precise(half, single) == [("fsdp_config.mixed_precision.param_dtype", "float32", "bfloat16")]
    assert precise(single, half) == [("fsdp_config.model_dtype", "float32", "bfloat16")]
    assert precise(half, half, strategy="veomni", mixed_precision=True) == [], (
        "another engine's settings mean other things"
    )


def test_settings_that_change_are_told_once() -> None:
    followed = engine()
    watch = of_optimizer(followed, "critic.optim")
    assert clip_grad(followed) == 1.0
    followed.optimizer.param_groups[0]["betas"] = (0.5, 0.9)
    followed.optimizer_config.clip_grad = 100.0
    assert watch.changes() == [
        ("critic.optim.clip_grad", 1.0, 100.0),
        ("critic.optim.betas", (0.9, 0.999), (0.5, 0.9)),
    ]
    assert watch.changes() == []


def test_a_write_to_any_tensor_between_updates_is_counted() -> None:
    parameters = [p for _, p in model()]
    sums = TensorSums(weights_of(parameters))
    sums.before_step(0)
    sums.after_step()
    sums.before_step(1)
    sums.after_step()
    parameters[2].data.mul_(0.99)
    sums.before_step(2)
    sums.before_step(3)
    assert [(update, float(moved)) for update, moved in sums.work_up()] == [(1, 0.0), (2, 1.0)]


def of_passes(between: Any = None) -> dict[str, Any]:
    """Two backward passes of a plain linear model, followed to the step."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(4, 3)
    places = replicated(linear.named_parameters()).places
    watch = GatheredGradientWatch(list(linear.named_parameters()), places, Guard(Nobody(), ()))
    watch.begin_window()
    for place in range(2):
        linear(torch.full((2, 4), place + 1.0)).square().sum().backward()
        if place == 0 and between is not None:
            between(linear)
    watch.before_step(7)
    ((source, numbers),) = watch.work_up()
    (fields,) = source.values(numbers.tolist()).values()
    return fields


class Nobody:
    """Stands in for a recorder: nothing fails here."""

    def cannot(self, what: str, why: str) -> None:
        """What a failure inside a guard comes to."""
        raise AssertionError(why)


def test_gradients_are_followed_from_each_pass_to_the_step() -> None:
    right = of_passes()
    assert right["gradient_off"] < 1
    assert right["gradient_passes"] == 2
    assert of_passes(lambda linear: linear.weight.grad.zero_())["gradient_off"] > 100
    assert of_passes(lambda linear: linear.bias.grad.mul_(2))["gradient_tensor"] == "bias"


def test_all_that_an_optimizer_keeps_is_compared_and_the_numbers_of_steps_too() -> None:
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = torch.optim.AdamW(parameters)
    for p in parameters:
        p.grad = torch.ones(3)
    optimizer.step()
    sums = TensorSums(moments_of(optimizer))
    for change, moved in ((lambda state: None, 0), (lambda state: state["step"].zero_(), 1)):
        sums.after_step()
        change(optimizer.state[parameters[1]])
        sums.before_step(1)
        ((_, found),) = sums.work_up()
        assert float(found) == moved


def test_a_checksum_of_all_tells_every_number() -> None:
    tensors = [torch.ones(3), torch.ones(2, dtype=torch.bfloat16)]
    before = checksum_of_all(tensors)
    assert checksum_of_all([of.clone() for of in tensors]) == before
    tensors[1][1] = 2
    assert checksum_of_all(tensors) != before


def test_a_frozen_tensor_that_moves_is_named() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].requires_grad_(False)
    kept = KeptTensors(model)
    kept.look(0, 0)
    with torch.no_grad():
        model[0].bias.add_(1)
        model[1].bias.add_(1)
    kept.look(1, 1)
    found = [source.values(numbers.tolist()) for source, numbers in kept.work_up()]
    assert found == [{0: {"kept_moved": 0, "kept_tensor": ""}}, {1: {"kept_moved": 1, "kept_tensor": "0.bias"}}]
