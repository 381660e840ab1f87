"""Writes samples into a slab: collates them, and converts their numbers on the way."""
