"""Resume states: which batches of an epoch were handed out, and the position to continue from."""
