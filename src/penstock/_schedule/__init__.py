"""Who does what next: events in, commands out, and nothing else (pure)."""

from __future__ import annotations

from penstock._schedule.assigned import Assigned
from penstock._schedule.scheduler import Scheduler

__all__ = ["Assigned", "Scheduler"]
