"""Finds, lists and reads the objects of remote stores, with retries. This package ignores file formats."""
