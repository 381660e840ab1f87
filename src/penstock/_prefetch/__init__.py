"""The parts of `prefetch`: the gate between thread and consumer, the producer, and the copies of batches."""
