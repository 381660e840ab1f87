"""Resume states: the batches of an epoch that were handed out, and the position to continue from."""
