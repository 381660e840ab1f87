"""Fuzzing where bytes decide: `make fuzz`, or `python -m tests.fuzz TARGET --minutes N [--atheris]`.

A target is a module of `targets` with

    seeds() -> list[bytes]     sound examples, from which mutation starts
    attack(data) -> None       gives the bytes to penstock, which may raise only the errors in ALLOWED
    ALLOWED                    the documented errors of this place
    mended(data) -> bytes      optional: makes checksums and lengths right again, so that mutation gets behind them
    JSON = True                optional: seeds are mutated as JSON, too

Anything else is a finding: another exception, a hang, much memory, a crash. Findings are saved in `found/TARGET`, and
`make test` runs them again, and `make deep` also some hundred fresh mutations of each target.
"""
