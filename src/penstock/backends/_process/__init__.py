"""Workers that are processes."""
