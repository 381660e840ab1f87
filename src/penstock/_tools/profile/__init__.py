"""The command `penstock profile`, which tries a dataset with different numbers of workers and recommends settings."""
