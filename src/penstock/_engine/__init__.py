"""Engines. An engine lives as long as its crew of workers."""
