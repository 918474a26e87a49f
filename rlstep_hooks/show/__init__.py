"""Views of a plan, a running audit, or a report."""
