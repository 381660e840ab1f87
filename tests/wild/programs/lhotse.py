"""lhotse: a dataset that is indexed by the cut sets of a dynamic sampler."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from lhotse import CutSet, Recording, SupervisionSegment
from lhotse.dataset import DynamicBucketingSampler, K2SpeechRecognitionDataset, make_worker_init_fn
from lhotse.dataset.input_strategies import AudioSamples
from torch.utils.data import DataLoader
from wild.tape import Tape


def cut(number: int, folder: Path):
    import soundfile

    seconds = 0.5 + number % 7 / 10
    path = folder / f"{number:03}.wav"
    random = np.random.default_rng(number)
    soundfile.write(path, random.uniform(-1, 1, int(8000 * seconds)).astype(np.float32), 8000)
    recording = Recording.from_file(path, recording_id=f"recording-{number}")
    cut = recording.to_cut()
    speech = SupervisionSegment(f"speech-{number}", recording.id, 0.0, recording.duration, text=f"words {number}")
    cut.supervisions = [speech]
    return cut


def program(tape: Tape, workers: int, folder: Path) -> None:
    cuts = CutSet.from_cuts(cut(number, folder) for number in range(60))
    dataset = K2SpeechRecognitionDataset(input_strategy=AudioSamples(), return_cuts=False)
    sampler = DynamicBucketingSampler(cuts, max_duration=5.0, shuffle=True, num_buckets=3, seed=0)
    loader = DataLoader(
        dataset,
        sampler=sampler,
        batch_size=None,
        num_workers=workers,
        worker_init_fn=make_worker_init_fn(rank=0, world_size=1, seed=0) if workers else None,
    )
    for epoch in tape.epochs():
        sampler.set_epoch(epoch)
        for batch in loader:
            tape.saw(batch)
