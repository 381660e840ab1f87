"""Resume states: what was handed out of an epoch, and how reading continues from there."""
