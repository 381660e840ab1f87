"""MXNet 1.9.1's ImageRecordIter on the JPEGs of bench/images.py, packed as they are.

MXNet's last release needs numpy below 1.24, so it has an environment of its own, with Python 3.10, which
`make .venv-mxnet/.made` makes: `BENCH_MXNET=.venv-mxnet/bin/python python -m bench.run --only jpeg`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.images import AREA, CROP, RATIO, Jpegs


@contextmanager
def mxnet_stream(workload: Any, dataset: Jpegs) -> Iterator[Iterator[Any]]:
    import mxnet

    path = dataset.folder.parent / "jpegs.rec"
    if not path.exists():
        _pack(dataset, str(path))
    # MXNet decodes with the requested number of threads, but at most half of the cores less one. So on 2 cores one
    # iterator has one thread, and 2 threads need two iterators, each with a part of the file.
    parts = [
        mxnet.io.ImageRecordIter(
            path_imgrec=str(path),
            path_imgidx=str(path.with_suffix(".idx")),
            num_parts=workload.workers,
            part_index=part,
            data_shape=(3, CROP, CROP),
            batch_size=workload.batch_size,
            shuffle=True,
            random_resized_crop=True,
            min_random_area=AREA[0],
            max_random_area=AREA[1],
            min_aspect_ratio=RATIO[0],
            max_aspect_ratio=RATIO[1],
            rand_mirror=True,
            preprocess_threads=1,
            prefetch_buffer=4,
            dtype="float32",
        )
        for part in range(workload.workers)
    ]

    def endless() -> Iterator[Any]:
        while True:
            for batches in zip(*parts):  # noqa: B905 - the parts have equally many
                for batch in batches:
                    (images,) = batch.data
                    images.wait_to_read()  # its engine is asynchronous
                    yield _Lent(images)
            for part in parts:
                part.reset()

    yield endless()


class _Lent:
    """An array of MXNet, which is copied to numpy only if it is read: in the check of the first batch."""

    def __init__(self, images: Any) -> None:
        self._images = images

    def __array__(self, dtype: Any = None) -> Any:
        return self._images.asnumpy()


def _pack(dataset: Jpegs, path: str) -> None:
    from mxnet import recordio

    part = path + ".part"
    writer = recordio.MXIndexedRecordIO(path[:-3] + "idx", part, "w")
    for key, name in enumerate(dataset.paths):
        with open(name, "rb") as file:
            writer.write_idx(key, recordio.pack(recordio.IRHeader(0, key % 8, key, 0), file.read()))
    writer.close()
    os.replace(part, path)
