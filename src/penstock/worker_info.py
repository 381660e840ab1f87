"""`penstock.get_worker_info()`: information about the worker, for code that runs in it."""

from penstock._at_work import WorkerInfo, get_worker_info

__all__ = ["WorkerInfo", "get_worker_info"]
