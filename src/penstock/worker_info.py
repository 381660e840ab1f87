"""`penstock.get_worker_info()`, which describes the worker in which the calling code runs."""

from penstock._at_work import WorkerInfo, get_worker_info

__all__ = ["WorkerInfo", "get_worker_info"]
