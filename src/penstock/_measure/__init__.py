"""Measurements that are always on: counters for the workers and the caller, which other processes can read."""
