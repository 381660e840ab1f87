"""Runs the `penstock` command when Python is started with `python -m penstock`."""

from penstock.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
