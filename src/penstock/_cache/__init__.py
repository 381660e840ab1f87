"""Pieces of remote files on a local disk, for all processes of a machine: kept, evicted and fetched by the plan."""
