"""The backend whose workers are processes on this machine."""
