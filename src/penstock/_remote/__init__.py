"""Finds, lists and reads objects in remote stores, with retries. Does not depend on file formats."""
