"""Finds, lists and reads the objects of remote stores, with retries. Knows nothing about file formats."""
