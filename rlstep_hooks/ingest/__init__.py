"""Runs that were exported: what frameworks wrote of them becomes the events of a record, which the usual rules judge.

`export.py` has the one form in which all formats arrive here, which is the documented interchange schema too. Each format is a module:
what wrote the files, how they are recognised, and what they leave out. `tally.py` compares what can be compared in one rollout,
`advantages.py` has the documented estimators, and `events.py` makes the record.
"""
