"""penstock's exception classes. Exceptions from user code keep their type and gain notes (see `_wire/failure.py`)."""

from __future__ import annotations

from typing import Any

from penstock._printable import printable

__all__ = [
    "CastError",
    "CollateError",
    "FormatError",
    "ImageError",
    "InternalError",
    "LoaderTimeout",
    "PanicError",
    "RecordError",
    "RemoteError",
    "RemoteFileNotFound",
    "RemoteTraceback",
    "SampleTooLarge",
    "StateError",
    "UnshippableDataset",
    "WorkerLost",
]


class _Printable(Exception):
    """An error whose message may contain names from files. Control characters in the message are escaped."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*(printable(each, lines=True) if type(each) is str else each for each in args))


class CollateError(TypeError, ValueError):
    """The samples of a step cannot be collated into one batch.

    It is both a TypeError and a ValueError, because programs written for torch catch one or the other. `rows`
    contains the positions, within the batch, of the samples that do not match the others. `reference` is the position
    of the sample that they are compared with, or None if they are wrong by themselves.

    >>> import numpy as np, penstock
    >>> try:
    ...     penstock.default_collate([np.zeros(2), np.zeros(2), np.zeros(3)])
    ... except penstock.CollateError as error:
    ...     error.rows, error.reference
    ((2,), 0)
    """

    rows: tuple[int, ...] = ()
    reference: int | None = None


class CastError(CollateError):
    """A value does not fit into the dtype that `dtype=` requests, or `dtype=` names a field that is not numeric."""


class WorkerLost(RuntimeError):
    """A worker process died, and its step could not be finished within the allowed number of retries.

    >>> import tempfile, penstock
    >>> from penstock.testing import Dying
    >>> deadly = Dying(range(4), {2}, tempfile.mkdtemp() + "/deaths")  # kills the worker that fetches key 2, once
    >>> with penstock.DataLoader(deadly, num_workers=1, retries=0) as loader:
    ...     try:
    ...         list(loader)
    ...     except penstock.WorkerLost as error:
    ...         print("SIGKILL" in str(error), "Samples in the step: [2]" in str(error))
    True True
    """


class LoaderTimeout(RuntimeError, TimeoutError):
    """No batch arrived within `timeout` seconds."""


class UnshippableDataset(TypeError):
    """The dataset, or another object that a worker needs, cannot be pickled and sent to the worker process.

    >>> import penstock
    >>> lines = penstock.dataset([(line for line in "ab")])  # a generator cannot be pickled
    >>> with penstock.DataLoader(lines, num_workers=1, multiprocessing_context="spawn") as loader:
    ...     try:
    ...         next(iter(loader))
    ...     except penstock.UnshippableDataset as error:
    ...         print("generator" in str(error))
    True
    """


class PanicError(RuntimeError):
    """A library written in Rust panicked. The library's error, which is not an `Exception`, is the `__cause__`."""


class ImageError(_Printable, ValueError):
    """A file or record is not an image, is damaged, or cannot be transformed. The message names the file.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from penstock.image import ImageError, ImageFolder
    >>> path = Path(tempfile.mkdtemp(), "cat", "1.jpg")
    >>> path.parent.mkdir()
    >>> path.write_bytes(b"not an image")
    12
    >>> try:
    ...     ImageFolder(path.parent.parent)[0]
    ... except ImageError as error:
    ...     print("1.jpg" in str(error))
    True
    """


class StateError(ValueError):
    """A resume state cannot be loaded: it is damaged, of another version, or from a different loader.

    >>> import penstock
    >>> state = penstock.DataLoader(range(8), seed=0).state_dict()
    >>> try:
    ...     penstock.DataLoader(range(9), seed=0).load_state_dict(state)
    ... except penstock.StateError as error:
    ...     print("8" in str(error), "9" in str(error))
    True True
    """


class FormatError(_Printable, ValueError):
    """A file of samples is damaged or has another format. The message names the file and the position in it."""


RecordError = FormatError
"""Another name for `FormatError`, used for MXNet and Caffe files."""


class SampleTooLarge(FormatError, ImageError):
    """A sample would need more memory than `max_sample_bytes=` allows.

    A loader treats such a sample like any other bad sample, according to `on_error=`. `sizes` contains the size of
    the sample and the limit, in bytes.
    """

    sizes: tuple[int, int] = (0, 0)


class RemoteError(_Printable, OSError):
    """A remote file cannot be read. The message contains the URL without credentials, and the number of attempts.

    `changed` is True if the file has changed since the dataset was created. `refused` is True if the store has
    answered and would give the same answer again, for example because permission is missing.
    """

    changed: bool = False
    refused: bool = False


class RemoteFileNotFound(RemoteError, FileNotFoundError):
    """No file exists at the URL."""


class RemoteTraceback(Exception):
    """The traceback from a worker, as text. It is the `__cause__` of an exception that was raised in the worker.

    >>> import penstock
    >>> from penstock.testing import Raising
    >>> with penstock.DataLoader(Raising(range(4), {2}), num_workers=1) as loader:
    ...     try:
    ...         list(loader)
    ...     except Exception as error:
    ...         print(type(error.__cause__).__name__, "in __getitem__" in error.__cause__.text)
    RemoteTraceback True
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


class InternalError(RuntimeError):
    """A bug in penstock: a state that should be impossible. Please report it with the whole message."""
