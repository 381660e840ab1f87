"""A span: one range of addresses for all files of a dataset, into which the cached pieces of remote files are mapped.

So samples are copied from one array by position, as from a local file, even if a sample extends over two pieces. The
range is divided into slots, one for each piece. After the cache has mapped a piece, the span maps the piece a second
time, into the piece's slot. When the cache drops the piece, the span clears the slot. Copying 64 rows of 1,025 ids
from random positions in 32 pieces takes 50 µs, as from a local file; copying them piece by piece takes 300 µs.
"""

from __future__ import annotations

import mmap
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from penstock._files import remote as _remotefile
from penstock._files.local import AnyFile, File
from penstock._files.mapping import clear, map_again, map_file, reserved
from penstock._files.pieces import PiecesInMemory
from penstock._files.remote import RemoteFile
from penstock._measure.cached import counting
from penstock._system.interrupts import CallAtEnd, call_at_end, interrupts_deferred


class Span:
    """All files of a dataset in one array, `memory`. File i starts at `begins[i]`. Unmapped pieces read as zeros.

    Another thread may unmap a piece while a reader copies from it. That thread first replaces `mark` with a new
    object. So a reader must save `mark`, call `has`, and copy. If `mark` has changed by then, the copy may be wrong.
    """

    def __init__(self, files: Sequence[AnyFile]) -> None:
        """Raises OSError if there is not enough address space."""
        self._files, self._size = files, _remotefile.PIECE
        # Each file has one slot more than pieces, so that each piece is followed by a slot of the same file.
        counts = [-(-file.size // self._size) + 1 for file in files]
        self._edges = np.concatenate([[0], np.cumsum(counts)])
        self.begins: NDArray[np.int64] = self._edges[:-1] * self._size
        self.memory = reserved(int(self._edges[-1]) * self._size)
        self.mark = object()
        self._mapped: set[int] = set((self._edges[1:] - 1).tolist())  # slots; the extra ones are never read
        self._ready: set[int] = set()  # slots that are mapped together with the next one
        self._local: set[int] = set()
        self._ends: dict[int, CallAtEnd] = {}
        self._dropped: deque[int] = deque()  # slots whose pieces the cache has dropped
        self._lock = threading.Lock()
        for file, (first, stop) in zip(files, pairwise(self._edges.tolist()), strict=True):
            if isinstance(file, File):
                map_file(file, self._address(first))
                self._local.update(range(first, stop - 1))
        for slot in self._local:
            self._note(slot, is_mapped=True)

    def has(self, at: NDArray[np.int64], nbytes: int) -> bool:
        """True if `nbytes` bytes (at most the size of a piece) are mapped at each of these offsets."""
        slots = set((at // self._size).tolist())
        if not slots <= self._ready and not self._slots(at, nbytes) <= self._mapped:
            return False
        hits = len(slots - self._local)
        counting().hits += hits
        return True

    def map(self, at: NDArray[np.int64], nbytes: int) -> None:
        """Maps the cached pieces at these offsets into the span. Does nothing if another thread is mapping pieces."""
        with interrupts_deferred():
            if self._lock.acquire(blocking=False):
                try:
                    while self._dropped:
                        self._clear(self._dropped.popleft())
                    for slot in self._slots(at, nbytes) - self._mapped:
                        self._map(slot)
                finally:
                    self._lock.release()

    def _map(self, slot: int) -> None:
        number = bisect_right(self._edges, slot) - 1
        file = self._files[number]
        assert isinstance(file, RemoteFile)
        view = file.pieces.mapped(file.piece(slot - int(self._edges[number])))
        if view is not None and map_again(view, self._address(slot)):
            self._ends[slot] = call_at_end(view, partial(self._dropped.append, slot))
            self._note(slot, is_mapped=True)

    def _clear(self, slot: int) -> None:
        self._note(slot, is_mapped=False)
        self.mark = object()  # not a counter, which two threads could increase to the same value
        clear(self._address(slot), self._size)

    def _note(self, slot: int, *, is_mapped: bool) -> None:
        (self._mapped.add if is_mapped else self._mapped.discard)(slot)
        for each in (slot - 1, slot):
            is_ready = each in self._mapped and each + 1 in self._mapped
            (self._ready.add if is_ready else self._ready.discard)(each)

    def _address(self, slot: int) -> int:
        return self.memory.ctypes.data + slot * self._size

    def _slots(self, at: NDArray[np.int64], nbytes: int) -> set[int]:
        return {*(at // self._size).tolist(), *((at + (nbytes - 1)) // self._size).tolist()}


def span_of(files: Sequence[AnyFile], nbytes: int) -> Span | None:
    """Returns a `Span` for reads of `nbytes` bytes, or None if a span is impossible or useless."""
    if all(isinstance(file, RemoteFile) and isinstance(file.pieces, PiecesInMemory) for file in files):
        return None
    if nbytes > _remotefile.PIECE or _remotefile.PIECE % mmap.PAGESIZE:
        return None
    try:
        return Span(files)
    except OSError:  # the limit of address space (ulimit -v), or of maps
        return None
