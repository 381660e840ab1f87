"""Samples become one batch, written straight into its memory."""
