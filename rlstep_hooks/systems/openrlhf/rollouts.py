"""Functions that the formulas of OpenRLHF call: sums over a run whose rollouts differ, and the shares of processes."""

from __future__ import annotations

from rlstep_hooks.planning.counting import countable


def pieces_of_run(
    samples: int,
    last: int,
    rollouts: int,
    rollouts_per_epoch: int,
    frozen: int,
    kept: int,
    processes: int,
    size: int,
    most: int | None,
) -> int:
    """Micro-batches (or updates) of one process in one pass over what is trained at a time, summed over the run.

    Args:
        samples: Samples of a rollout.
        last: Samples of an episode's last rollout; 0 where it is no smaller.
        rollouts: Rollouts of the run.
        rollouts_per_epoch: Rollouts of an episode.
        frozen: Rollouts at the beginning that do not train this role.
        kept: Rollouts at the beginning whose samples are trained with the first rollout after them.
        processes: Data-parallel processes.
        size: Samples of one piece on one process; what does not fill one is left out.
        most: The largest number of pieces that are trained at a time; None if there is no limit.
    """
    if rollouts <= frozen:
        return 0
    per_episode = rollouts_per_epoch or 1

    def pieces(of: int) -> int:
        made = of // processes // size
        return made if most is None else min(made, most)

    def smaller(before: int) -> int:
        return before // per_episode if last else 0

    first = kept + 1 if kept else frozen
    held = first * samples - smaller(first) * (samples - last) if kept else 0
    small = smaller(rollouts) - smaller(first)
    return pieces(held) + (rollouts - first - small) * pieces(samples) + small * pieces(last)


def shares(samples: int, rollout_microbatch: int, processes: int, microbatch: int) -> tuple[int, ...]:
    """Micro-batches of each process: K = ceil(S / micro_rollout_batch_size) pieces are shared in chunks of ceil(K / W).

    trainer/ray/launcher.py 0.11.2:348-371. A process with fewer micro-batches leaves the others waiting in `all_reduce`, which each
    micro-batch calls (trainer/ray/ppo_actor.py:215).
    """
    pieces = -(-samples // rollout_microbatch)
    chunk = -(-pieces // processes) * rollout_microbatch
    ranks = range(countable(processes, "processes"))
    return tuple(max(min(samples - rank * chunk, chunk), 0) // microbatch for rank in ranks)
