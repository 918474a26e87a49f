"""RLS2xx: counts and order of events."""
