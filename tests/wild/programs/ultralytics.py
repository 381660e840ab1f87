"""ultralytics: the YOLO dataset in its InfiniteDataLoader, which keeps one iterator for all epochs."""

from __future__ import annotations

import random
from pathlib import Path

from ultralytics.cfg import get_cfg
from ultralytics.data import build_dataloader, build_yolo_dataset
from wild.pictures import folder_of_pictures
from wild.tape import Tape


def program(tape: Tape, workers: int, folder: Path) -> None:
    images = folder_of_pictures(folder / "images", classes=1, each=48, size=64) / "class0"
    labels = folder / "labels" / "class0"
    labels.mkdir(parents=True)
    place = random.Random(3)
    for image in images.iterdir():
        x, y = place.uniform(0.3, 0.7), place.uniform(0.3, 0.7)
        (labels / f"{image.stem}.txt").write_text(f"{place.randrange(2)} {x} {y} 0.2 0.2\n")
    data = {"names": {0: "a", 1: "b"}, "nc": 2, "channels": 3, "path": str(folder)}
    cfg = get_cfg(overrides={"imgsz": 64, "task": "detect"})
    dataset = build_yolo_dataset(cfg, str(images), batch=8, data=data, mode="train")
    loader = build_dataloader(dataset, batch=8, workers=workers, shuffle=True)
    for epoch in tape.epochs():
        if epoch == 2:  # as the trainer does to close the mosaic
            dataset.close_mosaic(cfg)
            loader.reset()
        for batch in loader:
            tape.saw({**batch, "im_file": [Path(name).name for name in batch["im_file"]]})
