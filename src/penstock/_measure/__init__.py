"""Counters of the workers and the caller. They are always on, and other processes can read them."""
