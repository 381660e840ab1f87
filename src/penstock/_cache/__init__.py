"""Caches shared by all processes on a machine: pieces of remote files on disk, and decoded blocks in memory."""
