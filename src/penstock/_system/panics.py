"""Turns panics, the errors of libraries written in Rust (polars, tokenizers, obstore), into ordinary errors.

`except Exception` does not catch a panic, because its type is not derived from `Exception`. No module
exports that type.
"""

from __future__ import annotations

from types import TracebackType

from penstock.errors import PanicError


def ordinary(error: BaseException) -> BaseException:
    """Converts a Rust panic to a PanicError with the same traceback and notes. Returns other errors unchanged."""
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
    """Raises a PanicError if the error is a Rust panic."""
    if (made := ordinary(error)) is not error:
        raise made from error


class NoPanics:
    """Context manager that turns a Rust panic in its block into a PanicError."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            raise_ordinary(error)


NO_PANICS = NoPanics()
