"""Shared by all observers: patches, probes, deferred values, containment. Nothing here judges."""
