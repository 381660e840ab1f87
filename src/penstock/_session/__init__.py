"""What lives as long as a loader, and as long as one of its epochs."""
