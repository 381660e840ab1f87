"""Benchmarks of penstock beside its peers; `python -m bench.run` prints the table that the README quotes."""
