"""Finds, lists and reads the objects of remote stores, with retries, whatever their file format."""
