"""Who does what next: events in, commands out, and nothing else (pure)."""
