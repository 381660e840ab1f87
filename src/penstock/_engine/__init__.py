"""Engines, each of which lives as long as its crew of workers."""
