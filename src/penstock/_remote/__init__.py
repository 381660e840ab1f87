"""Remote bytes: objects of a store are found, listed and read by ranges, with retries. Knows nothing of formats."""
