"""What travels between the caller and its workers: both halves of every message."""
