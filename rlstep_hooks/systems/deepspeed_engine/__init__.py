"""What is known of DeepSpeed's engine, whichever framework drives it: faults of its releases."""
