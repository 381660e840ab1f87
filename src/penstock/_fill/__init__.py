"""Writes samples into a slab: collates them, and converts their numbers at the same time."""
