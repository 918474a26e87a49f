"""What the records of all processes of a run say together. Records are joined after training, so that no process waits for another."""
