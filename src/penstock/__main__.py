"""`python -m penstock`: the command `penstock` of this interpreter."""

from penstock.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
