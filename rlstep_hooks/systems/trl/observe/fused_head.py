"""The weights of a head that TRL uses without calling it.

From 1.16 on `add_fused_lm_head` (trl/trainer/utils.py 1.16.0:1548) multiplies by them in chunks, in `_ChunkedLogProbFunction`; with
ZeRO-3 they are gathered for no longer than its call (`maybe_gather_lm_head_ctx`).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from rlstep_hooks.observe.forward_beside import Beside


@contextmanager
def told_of_fused_heads(beside: Beside) -> Iterator[None]:
    """Tell rows that go beside a forward of it when it uses a fused head in this context."""
    from trl.trainer import utils

    function: Any = getattr(utils, "_ChunkedLogProbFunction", None)
    if function is None or "apply" in vars(function):
        yield
        return
    apply = function.apply

    def used(hidden: Tensor, weight: Tensor, bias: Tensor | None, *others: Any) -> Any:
        given = apply(hidden, weight, bias, *others)
        beside.head_used(weight, bias)
        return given

    function.apply = used
    try:
        yield
    finally:
        del function.apply
