"""The caches that all processes on a machine share: pieces of remote files on disk, and decoded blocks in memory."""
