"""Where a loader is: which epoch comes next, what was handed out of the last one, and what state was loaded."""

from __future__ import annotations

import copy

from penstock._resume.progress import Progress
from penstock._resume.state import State


class Epochs:
    """The count of epochs, which a loader keeps, and hands on to a loader that takes its place."""

    def __init__(self) -> None:
        self.next = 0
        self.begun: int | None = None
        self.progress: Progress | None = None  # of the epoch that was begun last
        self.loaded: State | None = None

    @property
    def current(self) -> int:
        """The epoch that was begun last; before the first, the one that will be."""
        return self.next if self.begun is None else self.begun

    def set(self, epoch: int) -> None:
        self.next, self.begun = epoch, None
        self.progress = self.loaded = None

    def load(self, state: State) -> None:
        """The next epoch goes on where the state was taken."""
        self.set(state.epoch)
        self.loaded = state

    def start(self) -> State:
        """Where the next epoch begins."""
        if self.loaded is not None:
            return self.loaded
        before = self.progress
        return State(self.next, 0, mark=before.mark if before is not None and before.is_over else None)

    def restores(self) -> bool:
        """Whether a sampler or stream must be given its state: one was loaded, or not even read in the last epoch."""
        return self.loaded is not None or (self.progress is not None and self.progress.began_at_end)

    def begin(self, progress: Progress) -> None:
        """An epoch was begun. In this order: another thread may take a state between any two."""
        self.progress, self.loaded = progress, None
        self.begun, self.next = self.next, self.next + 1

    def copy(self) -> Epochs:
        """Epochs of their own: what is handed out from now on does not move the copy."""
        made = copy.copy(self)
        made.progress = copy.copy(self.progress)
        return made
