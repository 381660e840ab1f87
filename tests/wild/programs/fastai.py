"""fastai: its DataLoaders, which hand torch's iterators a loader of their own, and a Learner."""

from __future__ import annotations

from pathlib import Path

from fastai.callback.core import Callback
from fastai.vision.all import ImageDataLoaders, Learner, RandomResizedCrop, aug_transforms, nn, set_seed
from wild.pictures import folder_of_pictures
from wild.tape import Tape


class Seen(Callback):
    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def before_batch(self) -> None:
        self.tape.saw((self.xb, self.yb))


def program(tape: Tape, workers: int, folder: Path) -> None:
    set_seed(4)
    loaders = ImageDataLoaders.from_folder(
        folder_of_pictures(folder),
        valid_pct=0.2,
        seed=2,
        item_tfms=RandomResizedCrop(32, min_scale=0.35),
        batch_tfms=aug_transforms(size=32, max_warp=0),
        bs=16,
        num_workers=workers,
        device="cpu",
    )
    for _ in tape.epochs():
        for batch in loaders.train:
            tape.saw(batch)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))
    learner = Learner(loaders, model, loss_func=nn.CrossEntropyLoss(), cbs=Seen(tape))
    with tape.timed(), learner.no_bar(), learner.no_logging():
        learner.fit(2)
