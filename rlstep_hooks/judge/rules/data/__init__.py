"""RLS5xx: rows, samples, rewards and advantages."""
