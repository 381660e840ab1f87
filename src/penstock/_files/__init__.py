"""Bytes, local and remote: paths, URLs, one identity for each file, pieces, indexes."""
