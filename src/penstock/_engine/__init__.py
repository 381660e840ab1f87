"""Engines, which live as long as a crew of workers."""
