"""`verl.experimental.fully_async_policy`: a process that generates, a queue, and a process that controls training."""
