"""`ShardSampler`, and `UncountedTar`, which counts a tar's samples only when the tar is needed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from operator import index as as_int
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from penstock._files.access import Access
from penstock._files.index import Index
from penstock._printable import counted
from penstock._remote.parallel import in_parallel
from penstock._remote.urls import is_url
from penstock.formats._beside import LateIndex
from penstock.formats._tar import Tar
from penstock.plan._blocks import WINDOW, division
from penstock.plan._order import Permutation
from penstock.plan._samplers import Sampler
from penstock.plan._seeds import mix

_SHIFT = 32  # a key has the index of the tar above this bit, and the index of the sample below it
_ROW = (1 << _SHIFT) - 1
_AHEAD = 2  # tars that are indexed in parallel; the same number may wait until they are needed


class UncountedTar(Tar):
    """A dataset of tars that counts the samples of a shard (one tar) only when the shard is first needed.

    Use it for a first look at remote shards that have no index. It takes the same arguments as `Tar`. It has no
    length, and needs a sampler:

        data = UncountedTar("s3://bucket/train/", fields=("jpg", "cls"))
        loader = DataLoader(data, batch_size=64, sampler=data.sampler(window=8), seed=0)

    The first batch comes as soon as the shards of the first window have been read; it does not wait for all shards.
    In the first epoch, every rank and every machine reads all shards, to find out where the samples of the other
    ranks are; after that, the indexes are stored. `penstock index` together with `Tar` avoids this. If the loader has
    `shard=`, pass `last_batch="drop"` or `"keep"` to it.

    A key is `shard << 32 | row`, where `shard` is the index of the shard in the order of the paths, and `row` is the
    index of the sample within the shard.

    >>> import io, tarfile, tempfile, penstock
    >>> folder = tempfile.mkdtemp()
    >>> for shard in range(3):
    ...     with tarfile.open(f"{folder}/{shard}.tar", "w") as tar:
    ...         for number in range(4):
    ...             member = tarfile.TarInfo(f"{number}.cls")
    ...             member.size = 1
    ...             tar.addfile(member, io.BytesIO(b"%d" % number))
    >>> data = UncountedTar(folder, fields=("cls",))
    >>> with penstock.DataLoader(data, batch_size=6, sampler=data.sampler(window=2), seed=0) as loader:
    ...     sorted(label for batch in loader for label in batch["cls"].tolist())
    [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    """

    def _find_indexes(self, access: Access) -> list[Index]:
        beside = self._beside(access, warns=False)
        return [LateIndex(file, self.kind, self.find, None, beside) for file in self.files]

    def _set_indexes(self, indexes: list[Index]) -> None:
        self.indexes, self._bad = indexes, [None] * len(indexes)

    def sampler(self, window: int = WINDOW, shuffle: bool = True) -> ShardSampler:
        """Returns a sampler that yields all keys. `window` is the number of shards whose samples are mixed."""
        return ShardSampler(self, window, shuffle)

    def count(self, number: int) -> int:
        """Returns the number of samples in a shard. Reads the whole shard unless its index is already stored."""
        return self._count(self.indexes[number])

    __len__ = None  # type: ignore[assignment]

    @property
    def blocks(self) -> NDArray[np.int64]:
        raise AttributeError("its samples are not counted yet. Pass sampler=data.sampler(window=16) instead")

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        if isinstance(key, slice):
            raise TypeError("A slice needs the number of samples, and these are not counted yet: use Tar.")
        number, row = divmod(as_int(key), _ROW + 1)
        if not 0 <= number < len(self.files) or row >= self.count(number):
            raise IndexError(f"key {as_int(key)} is not in {self!r}: it has no sample {row:,} in shard {number:,}.")
        return self._sample_at(number, row)

    __getitems__ = Tar.__getitems__  # `Dataset` removes it from a class that replaces `__getitem__`

    def __iter__(self) -> Iterator[Any]:
        return (self[key] for key in self.sampler(shuffle=False))

    def checked(self, keys: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        rows = np.asarray(keys, np.int64)
        for key in rows.tolist():
            if not 0 <= key >> _SHIFT < len(self.files) or key & _ROW >= self.count(key >> _SHIFT):
                self[key]  # raises IndexError
        return rows

    def locate_each(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        return (rows >> _SHIFT).astype(np.intp), rows & _ROW

    def __repr__(self) -> str:
        return f"UncountedTar({counted(len(self.files), 'file')})"


class ShardSampler(Sampler[int]):
    """Yields the keys of an `UncountedTar`: shards in random order, samples mixed within `window` consecutive shards.

    The order depends only on the number of samples in each shard, and on one random number per epoch. So with
    `seed=`, the order is the same on all ranks and after a resume. `shuffle="blocks"` with one block per
    shard gives a similar order, but needs the number of samples in all shards before the first key is known.
    """

    def __init__(self, data: UncountedTar, window: int = WINDOW, shuffle: bool = True) -> None:
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ValueError(f"window must be a number of shards of at least 1, got {window!r}.")
        self._data, self._window, self._shuffle = data, window, shuffle

    def __iter__(self) -> Iterator[int]:
        return self._keys(random.getrandbits(63) if self._shuffle else None)

    def _keys(self, key: int | None) -> Iterator[int]:
        shards = np.arange(len(self._data.paths))
        if key is not None:
            shards = Permutation(len(shards), mix(key, 0)).at(shards)
        threads = _AHEAD if any(map(is_url, self._data.paths)) else 1
        counted = in_parallel(lambda number, _: (number, self._data.count(number)), shards.tolist(), threads)
        if key is None:
            for number, count in counted:
                yield from range(number << _SHIFT, (number << _SHIFT) + count)
            return
        groups, parts = division(len(shards), self._window)
        edges = np.arange(groups + 1) * len(shards) // groups
        # Part i of group g is in stretch g + i - parts + 1: see BlockOrder.
        stretches: dict[int, list[NDArray[np.int64]]] = {}
        for group in range(groups):
            some = [next(counted) for _ in range(edges[group], edges[group + 1])]
            keys = np.concatenate([(number << _SHIFT) + np.arange(count) for number, count in some])
            keys = np.random.default_rng(mix(key, 1, group)).permutation(keys)
            for part, portion in enumerate(np.array_split(keys, parts)):
                stretch = min(max(group + part - parts + 1, 0), groups - parts)
                stretches.setdefault(stretch, []).append(portion)
            done = group - parts + 1
            if 0 <= done < groups - parts or group == groups - 1:
                for stretch in sorted(stretches) if group == groups - 1 else [done]:
                    whole = np.concatenate(stretches.pop(stretch))
                    yield from np.random.default_rng(mix(key, 2, stretch)).permutation(whole).tolist()
