"""SpeechBrain: padded batches from its SaveableDataLoader, which a checkpoint resumes in the middle of an epoch."""

from __future__ import annotations

from pathlib import Path

import torch
from speechbrain.dataio.dataloader import SaveableDataLoader, make_dataloader
from speechbrain.dataio.dataset import DynamicItemDataset
from speechbrain.utils.checkpoints import Checkpointer
from wild.tape import Tape


def dataset() -> DynamicItemDataset:
    data = {f"utterance{i:03}": {"length": 20 + i % 13, "text": f"words {i}"} for i in range(90)}
    made = DynamicItemDataset(data)
    made.add_dynamic_item(lambda length: torch.rand(length), takes="length", provides="signal")
    made.set_output_keys(["id", "signal", "text"])
    return made


def program(tape: Tape, workers: int, folder: Path) -> None:
    loader = make_dataloader(dataset(), batch_size=8, shuffle=True, num_workers=workers)
    for _ in tape.epochs():
        for batch in loader:
            tape.saw(show(batch))
    interrupted(tape, workers, folder)


def interrupted(tape: Tape, workers: int, folder: Path) -> None:
    checkpointer = Checkpointer(folder)
    loader = make_dataloader(dataset(), batch_size=8, num_workers=workers)
    assert isinstance(loader, SaveableDataLoader)
    checkpointer.add_recoverable("loader", loader)
    for number, batch in enumerate(loader):
        tape.saw(show(batch))
        if number == 3:
            checkpointer.save_checkpoint()
            break
    loader = make_dataloader(dataset(), batch_size=8, num_workers=workers)
    resumed = Checkpointer(folder)
    resumed.add_recoverable("loader", loader)
    resumed.recover_if_possible()
    for batch in loader:
        tape.saw(show(batch))


def show(batch):
    signal, lengths = batch.signal
    return type(batch).__name__, batch.id, batch.text, signal, lengths
