"""What lives as long as a crew of workers."""
