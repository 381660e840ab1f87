"""Every exception that penstock itself raises.

A user's own exception is not here: it arrives with its own type, and gains notes that name the
sample, the step and the worker (see `_wire/failure.py`).
"""

from __future__ import annotations

__all__ = [
    "CastError",
    "CollateError",
    "ImageError",
    "InternalError",
    "LoaderTimeout",
    "RecordError",
    "RemoteTraceback",
    "StateError",
    "UnshippableDataset",
    "WorkerLost",
]


class CollateError(TypeError, ValueError):
    """Samples of one step cannot be put together into one batch.

    It is both a TypeError and a ValueError, because programs written for torch catch either. `rows`
    are the positions in the batch of the samples that do not fit.
    """

    rows: tuple[int, ...] = ()


class CastError(CollateError):
    """A value has no place in the dtype that `dtype=` asks for, or `dtype=` names what cannot be converted."""


class WorkerLost(RuntimeError):
    """A worker process died, and its step was not finished after the allowed number of tries."""


class LoaderTimeout(RuntimeError, TimeoutError):
    """No batch arrived within `timeout` seconds."""


class UnshippableDataset(TypeError):
    """Something that a worker needs cannot be sent to another process."""


class ImageError(ValueError):
    """A file or record that is no image, is damaged, or does not suit the transform. It names the file."""


class StateError(ValueError):
    """A resume state that cannot be loaded: damaged, of another version, or of another loader."""


class RecordError(ValueError):
    """A file of records that is damaged, or is not of the kind that it is read as. Says where in the file."""


class RemoteTraceback(Exception):
    """The traceback of a worker, as text: the cause of an exception that came from there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


class InternalError(RuntimeError):
    """A state that should be impossible: a bug in penstock. Please report it with this text."""
