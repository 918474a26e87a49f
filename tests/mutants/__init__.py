"""Faults made by a machine in the source of a framework, each trained for real: `nox -s mutants`.

Places are the lines that a tiny run executes. A mutant whose training is bit for bit that of the unmutated run is no fault and is not
counted. What remains is found by the audit, or survives and is judged by a person (`judged.json`).
"""
