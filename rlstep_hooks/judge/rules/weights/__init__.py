"""RLS4xx: weights, and the weights that the sampler holds."""
