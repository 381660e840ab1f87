"""The places where bytes decide: one module for each."""
