"""RLS3xx: old log-probs and the ratio."""
