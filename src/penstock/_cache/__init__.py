"""Caches that all processes of a machine share: pieces of remote files on disk, and decoded blocks in memory."""
