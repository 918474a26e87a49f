"""The version of this package and its public address, each in its one place."""

__version__ = "0.2.0"

REPOSITORY = ""
"""The repository on GitHub, as "owner/name"; empty as long as there is none. The metadata of the package take it, and documents
and drafts for other projects get it in the place of `PLACEHOLDER` when they are made."""

PLACEHOLDER = "OWNER/rlstep-hooks"
"""Stands in texts for a repository whose address is not known."""
