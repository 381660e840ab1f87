"""Decides what to do next. The code is pure: events go in, commands come out, and nothing else happens."""
