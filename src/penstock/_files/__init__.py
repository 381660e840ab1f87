"""Reads the bytes of local and remote files: paths, URLs, a unique identity for each file, pieces, indexes."""
