"""Sessions, which live as long as a loader, and readers, which live as long as an epoch."""
