"""What the proof of a weight sync costs, in seconds of the processor: syncs with and without it, in turn.

`python -m tests.bench.delivery` needs 3 GB of memory. The model has the tensors of Qwen2.5-0.5B. The sync is the cheapest there is, a
copy within one process: any real one (a broadcast, shared memory, a loader that fuses tensors) takes longer, and the share is smaller.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.delivery import same_names
from rlstep_hooks.observe.sync_watch import SyncWatch
from rlstep_hooks.record.cadence import WHOLE_SYNCS

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.record.events import AnyEvent

PAIRS = 60
HIDDEN, INNER, KEYS, VOCABULARY, LAYERS = 896, 4864, 128, 151_936, 24


class Silent:
    """A recorder that keeps nothing."""

    def now(self) -> float:
        """No time."""
        return 0.0

    def emit(self, *events: AnyEvent) -> None:
        """Forget them."""

    def cannot(self, what: str, why: str) -> None:
        """Fail: what could not be observed cost nothing."""
        raise RuntimeError(why)


def model() -> Any:
    """A module with the names and shapes of the model, 290 tensors, in bfloat16."""
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (VOCABULARY, HIDDEN), "norm": (HIDDEN,)}
    for layer in range(LAYERS):
        own = {
            "q": (HIDDEN, HIDDEN), "q_bias": (HIDDEN,), "k": (KEYS, HIDDEN), "k_bias": (KEYS,), "v": (KEYS, HIDDEN), "v_bias": (KEYS,),
            "o": (HIDDEN, HIDDEN), "gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER), "norm1": (HIDDEN,),
            "norm2": (HIDDEN,),
        }  # fmt: skip
        shapes |= {f"layer{layer}_{name}": shape for name, shape in own.items()}
    made = torch.nn.Module()
    for name, shape in shapes.items():
        made.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16), requires_grad=False))
    return made


def main() -> None:
    """Print both times and the share."""
    policy, engine = model(), model()
    own = dict(engine.named_parameters())
    watch = SyncWatch(Silent(), lambda: policy, "the engine", same_names(engine))

    def plain() -> None:
        for name, tensor in policy.named_parameters():
            own[name].copy_(tensor.detach())

    def proved() -> None:
        watch.begin()
        pairs = ((name, tensor.detach()) for name, tensor in policy.named_parameters())
        for name, tensor in watch.through(pairs, watch.handed_over, watch.arrives):
            own[name].copy_(tensor)
        watch.end(0)

    print(
        f"{len(own)} tensors, {sum(t.numel() for t in own.values()) / 1e6:.0f} M parameters in bfloat16, {PAIRS} pairs"
    )
    compare(plain, proved, len(own))


def compare(plain: Callable[[], None], proved: Callable[[], None], tensors: int) -> None:
    """Time syncs with and without the proof in turn, and print both, the share and the ratio of pairs.

    The first syncs, which read all tensors, are timed apart. They also make what later ones keep: where the elements of a tensor are.
    """

    def seconds(sync: Callable[[], None]) -> float:
        began = time.thread_time()
        sync()
        return time.thread_time() - began

    for _ in range(WHOLE_SYNCS):
        seconds(plain)
    whole = [seconds(proved) for _ in range(WHOLE_SYNCS)]
    pairs = []
    for pair in range(PAIRS):
        # Who comes first changes from pair to pair.
        first, second = (plain, proved) if pair % 2 else (proved, plain)
        times = seconds(first), seconds(second)
        pairs.append(times if pair % 2 else times[::-1])
    alone = statistics.median(without for without, _ in pairs)
    extra = statistics.median(with_it - without for without, with_it in pairs)
    low, middle, high = statistics.quantiles(with_it / without for without, with_it in pairs)
    print(
        f"a sync {alone * 1e3:.1f} ms; the proof {extra * 1e3:.2f} ms ({extra / tensors * 1e6:.1f} us a tensor), {extra / alone:.2%}; "
        f"ratio of {PAIRS} pairs {middle:.4f} ({low:.4f} to {high:.4f}); "
        f"the first {WHOLE_SYNCS} syncs {', '.join(f'{(each - alone) * 1e3:.1f} ms' for each in whole)} more"
    )


if __name__ == "__main__":
    main()
