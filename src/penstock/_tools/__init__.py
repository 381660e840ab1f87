"""The commands of the `penstock` command line."""
