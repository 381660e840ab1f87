"""The epochs of a loader: the number of the next one, the progress of the last one, and a state that was loaded."""

from __future__ import annotations

import copy

from penstock._resume.progress import Progress
from penstock._resume.state import State


class Epochs:
    """The epochs of a loader. A loader that replaces it takes them over."""

    def __init__(self) -> None:
        self.next = 0
        self.begun: int | None = None
        self.progress: Progress | None = None  # of the epoch that was begun last
        self.loaded: State | None = None

    @property
    def current(self) -> int:
        """The epoch that was begun last; before the first `iter()`, the epoch that it will begin."""
        return self.next if self.begun is None else self.begun

    def set(self, epoch: int) -> None:
        self.next, self.begun = epoch, None
        self.progress = self.loaded = None

    def load(self, state: State) -> None:
        """The next epoch continues from this state."""
        self.set(state.epoch)
        self.loaded = state

    def start(self) -> State:
        """The state that the next epoch starts from."""
        if self.loaded is not None:
            return self.loaded
        before = self.progress
        return State(self.next, 0, mark=before.mark if before is not None and before.is_over else None)

    def restores(self) -> bool:
        """True if the sampler or stream must load its state: no live object has the state that the mark describes."""
        return self.loaded is not None or (self.progress is not None and self.progress.began_at_end)

    def begin(self, progress: Progress) -> None:
        """An epoch was begun. In this order: another thread may take a state between any two assignments."""
        self.progress, self.loaded = progress, None
        self.begun, self.next = self.next, self.next + 1

    def copy(self) -> Epochs:
        """A copy with its own progress: batches that are handed out later do not move it."""
        made = copy.copy(self)
        made.progress = copy.copy(self.progress)
        return made
