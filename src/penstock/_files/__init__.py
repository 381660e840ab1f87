"""Finds, identifies, reads and indexes local and remote files."""
