"""Measurements that are always on: counters of the workers and of the caller, which other processes can read."""
