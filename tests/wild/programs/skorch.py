"""skorch: `fit` of a classifier, with arguments for its iterators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from wild.tape import Tape


class Seen(Callback):
    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def on_batch_begin(self, net, batch=None, training=None, **kwargs) -> None:
        self.tape.saw((batch, training))


def program(tape: Tape, workers: int, folder: Path) -> None:
    random = np.random.default_rng(2)
    x, y = random.random((400, 4), np.float32), random.integers(0, 3, 400)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(dim=-1))
    net = NeuralNetClassifier(
        model,
        max_epochs=3,
        lr=0.1,
        batch_size=16,
        verbose=0,
        iterator_train__shuffle=True,
        iterator_train__num_workers=workers,
        iterator_valid__num_workers=workers,
        callbacks=[Seen(tape)],
    )
    with tape.timed():
        net.fit(x, y)
    tape.saw(net.predict_proba(x))
