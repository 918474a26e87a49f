"""Judges runs that one process controls and other processes train (verl, OpenRLHF).

The controller's record has the rollouts and the calls to its trainers (`Phase`); a trainer's record has what it did within each
call. `compose` joins both into the one stream that a judge reads, `run` judges every trainer's stream, and `live` finds a trainer's
records in a folder.
"""
