"""The training program of a torchvision user, before and after one line: `loader=penstock.image.loader()`.

`make bench-images` runs it, since it needs torchvision. The program is ImageFolder with
RandomResizedCrop(224), a flip, ToTensor and Normalize, in batches of 64 with 2 workers. Each variant has a process of
its own, and their epochs alternate.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.images.vision import declare_operators

ROOT = Path(__file__).parent.parent
WORKERS, BATCH = 2, 64
SIZES = {
    "375 x 500": (375, 500, 512),
    "768 x 1024": (768, 1024, 256),
    "1536 x 2048": (1536, 2048, 64),
    "3024 x 4032": (3024, 4032, 32),
}
"""Height and width, and how many files of this size there are."""

VARIANTS = {
    "torch": "torch's DataLoader",
    "torch line": "torch's DataLoader, loader=",
    "swap": "penstock.torch",
    "line": "penstock.torch, loader=",
    "inexact": "penstock.torch, loader= with exact=False",
}


def write_files(folder: Path, height: int, width: int, count: int) -> None:
    """Writes pictures with clouds, edges and grain, as large as photographs of quality 90. Every file is another."""
    from PIL import Image

    from bench.images import picture

    rng = np.random.default_rng(0)
    base = [Image.fromarray(picture(rng)).resize((width, height), Image.Resampling.BICUBIC) for _ in range(8)]
    for number in range(count):
        grain = rng.normal(scale=4, size=(height, width, 1)).astype(np.float32)
        pixels = np.clip(np.asarray(base[number % len(base)]) + grain, 0, 255).astype(np.uint8)
        path = folder / f"class{number % 4}" / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)


def program(folder: Path, variant: str, batch: int) -> Any:
    """Returns the loader that the user's program would make."""
    import torch.utils.data

    declare_operators()
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, ToTensor

    import penstock.image
    import penstock.torch

    transform = Compose(
        [
            RandomResizedCrop(224),
            RandomHorizontalFlip(),
            ToTensor(),
            Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    line = {"loader": penstock.image.loader(exact=variant != "inexact")}
    dataset = ImageFolder(folder, transform, **(line if variant in ("torch line", "line", "inexact") else {}))
    kind = torch.utils.data.DataLoader if variant.startswith("torch") else penstock.torch.DataLoader
    return kind(dataset, batch_size=batch, shuffle=True, num_workers=WORKERS, persistent_workers=True, drop_last=True)


def serve(folder: Path, variant: str, batch: int) -> None:
    """Reads one epoch for each line of standard input, and answers with seconds, CPU seconds and images."""
    loader = program(folder, variant, batch)
    for line in sys.stdin:
        begun, used, images = time.perf_counter(), cpu_seconds(), 0
        for _ in range(int(line)):
            for pictures, _ in loader:
                images += len(pictures)
        print(time.perf_counter() - begun, cpu_seconds() - used, images, flush=True)


def cpu_seconds() -> float:
    """Of this process and all its descendants that live, from /proc."""
    tick, total = os.sysconf("SC_CLK_TCK"), 0
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            parents[int(entry.name)], spent[int(entry.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    for pid, time_spent in spent.items():
        above = pid
        while above not in (0, os.getpid()) and above in parents:
            above = parents[above]
        total += time_spent if above == os.getpid() else 0
    return total / tick


def measure(folder: Path, batch: int, epochs: int, rounds: int, variants: list[str]) -> dict[str, list[list[float]]]:
    """Returns (images a second, images a CPU second) of each round of each variant."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "bench.image_loader", "--serve", str(folder), "--batch", str(batch), "--variant"]
    programs = {
        name: subprocess.Popen(
            [*command, name], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in variants
    }
    found: dict[str, list[list[float]]] = {name: [] for name in variants}
    try:
        for number in range(rounds + 1):
            for name, process in programs.items():
                assert process.stdin and process.stdout
                print(epochs if number else 1, file=process.stdin, flush=True)
                seconds, cpu, images = map(float, process.stdout.readline().split())
                if number:  # the first starts the workers
                    found[name].append([images / seconds, images / cpu])
    finally:
        for process in programs.values():
            assert process.stdin
            process.stdin.close()
            process.wait(30)
    return found


def pixels(files: list[Path]) -> None:
    """Prints how far `exact=False` is from Pillow, in steps of 255."""
    import torch

    declare_operators()
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, RandomResizedCrop, Resize

    import penstock.image

    load, default = penstock.image.loader(exact=False), penstock.image.loader()
    for mode in (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC):
        training = RandomResizedCrop(224, interpolation=mode)
        evaluation = Compose([Resize(256, interpolation=mode), CenterCrop(224)])
        for name, transform in (("training", training), ("evaluation", evaluation)):
            differences = []
            for number, path in enumerate(files[:32]):
                both = []
                for read in (load, default):
                    torch.manual_seed(number)
                    both.append(np.asarray(transform(read(path))).astype(int))
                differences.append(np.abs(both[0] - both[1]))
            found = np.concatenate([each.ravel() for each in differences])
            share = (found > 4).mean()
            print(f"{mode.value} {name}: mean {found.mean():.2f}, max {found.max()}, above 4: {share:.2%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", default=",".join(SIZES), help="some of: " + ", ".join(SIZES))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of one round of the slowest, about")
    parser.add_argument("--folder", type=Path, help="keeps the files there")
    parser.add_argument("--pixels", action="store_true", help="compares pixels instead of measuring")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--variant")
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.variant, given.batch)
        return
    with tempfile.TemporaryDirectory() as temporary:
        for size in given.sizes.split(","):
            height, width, count = SIZES[size]
            folder = (given.folder or Path(temporary)) / f"{height}x{width}"
            if not folder.exists():
                write_files(folder, height, width, count)
            files = sorted(folder.rglob("*.jpg"))
            each = sum(path.stat().st_size for path in files) / len(files)
            batch = min(given.batch, count)
            if given.pixels:
                print(f"\n{size}")
                pixels(files)
                continue
            found = measure(folder, batch, 1, given.rounds, given.variants.split(","))
            report(f"{size}, {each / 1000:,.0f} kB a file, batches of {batch}", found)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"largest process: {peak:,.0f} MB")


def report(title: str, found: dict[str, list[list[float]]]) -> None:
    print(f"\n{title}\n{'':44} images/s  least to most    ratio  images/CPU s  ratio")
    medians = {
        name: [statistics.median(each) for each in zip(*rounds, strict=True)] for name, rounds in found.items()
    }
    base = next(iter(medians.values()))
    for name, (rate, per_cpu) in medians.items():
        rates = [rate for rate, _ in found[name]]
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        ratios = rate / base[0], per_cpu / base[1]
        print(f"{VARIANTS[name]:44} {rate:8,.0f}  {spread:16} {ratios[0]:6.2f} {per_cpu:13,.0f} {ratios[1]:6.2f}")


if __name__ == "__main__":
    main()
