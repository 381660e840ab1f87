"""Samples into a slab: collate them, and convert their numbers while they are written."""
