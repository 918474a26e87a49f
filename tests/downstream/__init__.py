"""Test suites of frameworks, run as they stand, with and without the audit: `nox -s downstream`."""
