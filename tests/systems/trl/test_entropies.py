"""The entropies that a loss takes: their values beside a forward of the row alone (RLS314), and what a bonus teaches (RLS805)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from packaging.version import Version

from rlstep_hooks.record.events import Measured
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import codes, events_of, problems
from tests.systems.trl.test_scored_alone import FROM, trained

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rlstep_hooks.planning.finding import Finding

pytestmark = pytest.mark.skipif(Version("1.16") > RELEASE, reason="the entropy bonus came with 1.16")

BONUS = {"entropy_coef": 0.5}
CHOICE = {"top_entropy_quantile": 0.3}


def altered(change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """A fault in the entropies that come with the log-probs of the loss."""

    def fault(trainer: Any) -> None:
        original = trainer._get_per_token_logps_and_entropies

        def scores(*args: Any, **kwargs: Any) -> Any:
            log_probs, entropies, *others = original(*args, **kwargs)
            if entropies is not None and torch.is_grad_enabled() and trainer.state.global_step >= FROM:
                entropies = change(entropies)
            return log_probs, entropies, *others

        trainer._get_per_token_logps_and_entropies = scores

    return fault


def first(audit: Any, code: str) -> Finding:
    return next(of for of in audit.report.findings if of.code == code)


@pytest.mark.parametrize(
    "settings",
    [BONUS, CHOICE, BONUS | CHOICE, BONUS | {"bf16": True}, BONUS | {"gradient_accumulation_steps": 2}],
    ids=str,
)
def test_silent_on_healthy_runs(build: Callable[..., Any], settings: dict[str, Any]) -> None:
    audit = trained(build, **settings)
    assert not codes(audit.report), problems(audit.report)
    values = [of for event in events_of(audit) if isinstance(event, Measured) for of in event.microbatches]
    of_rows = [of.entropy_gap for of in values if of.entropy_gap is not None]
    assert of_rows
    assert max(of_rows) < (1e-5 if "bf16" not in settings else 0.05)
    assert any(of.head_gap is not None for of in values) == (
        "top_entropy_quantile" not in settings or "entropy_coef" not in settings
    )


@pytest.mark.parametrize(
    ("settings", "change", "cause"),
    [
        (CHOICE, lambda entropies: entropies.roll(1, 1), "those of the token before each"),
        (BONUS, lambda entropies: entropies * 0.5, "0.5 times the entropies"),
        (CHOICE, lambda entropies: -entropies, "-1 times the entropies"),
        (BONUS, torch.zeros_like, "0"),
    ],
    ids=["shifted", "halved", "negated", "zero"],
)
def test_wrong_entropies_are_named(
    build: Callable[..., Any], settings: dict[str, Any], change: Callable[[Tensor], Tensor], cause: str
) -> None:
    audit = trained(build, altered(change), **settings)
    finding = first(audit, "RLS314")
    assert (finding.where.rollout, finding.where.update) == (FROM, FROM)
    assert finding.why.startswith(f"the loss has {cause};")
    accused = [of for of in audit.report.findings if of.code == "RLS413" and of.explained_by != "RLS314"]
    assert not accused, "the text is the policy's"


def test_a_bonus_that_teaches_something_else_is_seen(build: Callable[..., Any]) -> None:
    audit = trained(build, altered(lambda entropies: 2 * entropies.detach() - entropies), **BONUS)
    finding = first(audit, "RLS805")
    assert finding.where.update == FROM
    assert "entropies beside them" in finding.why


def test_a_detached_bonus_is_named_in_the_micro_batch_that_has_it(build: Callable[..., Any]) -> None:
    """The entropy of a nearly uniform distribution has hardly a gradient, so that its size does not tell."""
    audit = trained(build, altered(torch.Tensor.detach), **BONUS)
    finding = first(audit, "RLS805")
    assert (finding.severity, finding.where.update) == ("error", FROM)
    assert finding.observed == "entropies without a gradient"
