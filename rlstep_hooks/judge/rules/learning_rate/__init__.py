"""RLS6xx: the learning rate."""
