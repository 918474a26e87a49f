"""A reward function is asked about texts that any model may give, in a process of its own, and what it gave is judged."""
