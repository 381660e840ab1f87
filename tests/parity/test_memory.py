"""A batch is the caller's: for as long as anything refers to it, whatever is done to it, wherever it is sent."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing

from parity import sources
from parity.pair import Tape, both, epoch

ROWS = 64


def row(key: int) -> dict[str, Any]:
    return {"x": torch.full((ROWS,), key), "y": [np.full(ROWS, key / 2), key], "name": str(key)}


@pytest.mark.parametrize("persistent", [False, True])
def test_all_batches_of_three_epochs_outlive_the_loader(persistent: bool) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class(sources.Made(40, row), 2, True, num_workers=2, persistent_workers=persistent)
        for _ in range(3):
            epoch(loader, tape)
        del loader
        gc.collect()

    both(program)


def test_what_is_written_into_a_batch_stays_in_that_batch() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        for i, batch in enumerate(loader_class(sources.Made(40, row), 2, num_workers=2)):
            batch["x"].add_(1000 * i)
            batch["y"][0][0].zero_()
            batch["y"][1].mul_(-1)
            tape.append(batch)

    both(program)


KEEP: dict[str, Any] = {
    "a row": lambda batch: batch["x"][1],
    "a reshaped view": lambda batch: batch["x"].view(-1, 4).t(),
    "numpy": lambda batch: batch["x"].numpy(),
    "a row of numpy": lambda batch: batch["x"].numpy()[1, 3:],
    "the storage": lambda batch: (batch["x"].untyped_storage(), batch["x"].storage_offset()),
    "detached": lambda batch: batch["y"][0].detach(),
    "another dtype": lambda batch: batch["x"].view(torch.uint8),
    "dlpack": lambda batch: torch.from_dlpack(batch["x"]),
    "one leaf of many": lambda batch: batch["y"][1],
}


@pytest.mark.parametrize("name", KEEP)
def test_a_part_of_a_batch_keeps_its_memory(name: str) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        for batch in loader_class(sources.Made(40, row), 2, num_workers=1):
            tape.append(KEEP[name](batch))
        if name == "the storage":
            tape[:] = [torch.tensor([], dtype=torch.int64).set_(*kept, (2, ROWS)) for kept in tape]

    both(program)


def test_one_tensor_twice_in_a_batch_is_one_tensor_and_views_share_their_memory() -> None:
    def collate(samples: list[int]) -> Any:
        tensor = torch.tensor(samples)
        return [tensor, tensor, tensor[1:]]

    def program(loader_class: Any, tape: Tape) -> None:
        for whole, again, part in loader_class(range(6), 3, num_workers=1, collate_fn=collate):
            tape.append(whole is again)
            part.fill_(9)
            tape.append(whole)

    both(program)


def test_one_object_twice_in_a_batch_is_one_object() -> None:
    def collate(samples: list[int]) -> Any:
        array = np.array(samples)
        inner = [array, torch.ones(2)]
        return {"a": inner, "b": inner, "c": array}

    def program(loader_class: Any, tape: Tape) -> None:
        for batch in loader_class(range(6), 3, num_workers=1, collate_fn=collate):
            tape.append([batch, batch["a"] is batch["b"], batch["a"][0] is batch["c"]])

    both(program)


def double(inbox: Any, outbox: Any) -> None:
    while (batch := inbox.get()) is not None:
        batch["x"].mul_(2)
        outbox.put((batch["x"].sum().item(), batch["name"]))


@pytest.mark.usefixtures("tensors_are_sent")
def test_a_batch_can_be_sent_to_another_process_which_sees_the_same_memory() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        context = torch.multiprocessing.get_context("fork")
        inbox, outbox = context.Queue(), context.Queue()
        process = context.Process(target=double, args=(inbox, outbox), daemon=True)
        process.start()
        kept = []
        for batch in loader_class(sources.Made(12, row), 2, num_workers=2):
            inbox.put(batch)
            tape.append(outbox.get(timeout=30))
            kept.append(batch)
        inbox.put(None)
        process.join()
        tape.extend(kept)  # doubled by the other process, in shared memory
        for queue in (inbox, outbox):
            queue.close()
            queue.join_thread()
        process.close()

    both(program)


def test_a_batch_can_be_shared_by_hand() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        for batch in loader_class(sources.Made(8, row), 2, num_workers=1):
            batch["x"].share_memory_()
            batch["x"] += 1
            tape.append([batch, batch["x"].is_shared()])

    both(program)
