"""RLS8xx: loss, gradient and optimizer."""
