"""Decides what is done next: events in, commands out, and nothing else (pure)."""
