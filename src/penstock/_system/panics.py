"""Panics: errors of libraries written in Rust (polars, tokenizers, obstore), which are not an `Exception` in Python.

A panic in one sample is a bad sample like any other, but `except Exception` does not catch it, and its type cannot be
imported from any module. Here it becomes an ordinary error.
"""

from __future__ import annotations

from types import TracebackType

from penstock.errors import PanicError


def ordinary(error: BaseException) -> BaseException:
    """Returns the error itself; for a panic, a PanicError with the same traceback and notes."""
    if isinstance(error, Exception) or type(error).__name__ != "PanicException":
        return error
    made = PanicError(
        f"A library written in Rust panicked: {error}. This is a bug of that library, or it was given something that "
        "it does not expect. Its message on standard error says where."
    )
    made.__dict__.update(error.__dict__)  # its notes
    made.__cause__ = error
    return made.with_traceback(error.__traceback__)


def raise_ordinary(error: BaseException) -> None:
    """Raises the PanicError for a panic; returns for any other error."""
    if (made := ordinary(error)) is not error:
        raise made from error


class NoPanics:
    """`with NO_PANICS:` turns a panic in the block into a PanicError."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            raise_ordinary(error)


NO_PANICS = NoPanics()
