"""Measurements that are always on: the counters of workers, in shared memory, and of the caller; and their page."""
