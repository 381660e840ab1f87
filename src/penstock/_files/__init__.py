"""Local and remote files: finds them by path or URL, identifies them, reads their bytes, and keeps their indexes."""
