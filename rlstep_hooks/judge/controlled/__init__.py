"""Runs that one process controls and others train (verl, OpenRLHF): what each of them saw, put together and judged.

The controller's record has the rollouts and the calls to its trainers (`Phase`), a trainer's record what it did within each
call. `compose` puts both into the one stream that a judge reads, `run` judges every trainer's stream, `live` does so while the
run goes on, `tail` reads files that grow, `ray_sink` takes lines where machines share no disk.
"""
