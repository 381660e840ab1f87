"""The command `penstock`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from penstock import __version__

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="penstock", description="A data loader: a dataset at one end, a training step at the other."
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    commands.add_parser(
        "demo",
        help="stream a small dataset for two epochs with two workers, and check it (under 30 s)",
        description="Write a small image-like dataset to a temporary folder, stream it for two epochs with "
        "two workers, check that the batches equal those of the plain loop, and print the times. Exits with "
        "1 if a check fails.",
    )
    _add_top(commands)
    _add_pack(commands)
    options = parser.parse_args(arguments)

    try:
        return _run(options)
    except KeyboardInterrupt:
        if options.command == "pack":
            print("penstock pack: stopped. Nothing was written.", file=sys.stderr)
        return 128 + signal.SIGINT


def _add_top(commands: Any) -> None:
    top = commands.add_parser(
        "top",
        help="show the loaders of this user that run now",
        description="List the penstock loaders of this user that run now, on this machine, with their speed and how "
        "much their programs wait for them. It reads what they write to memory twice a second, and disturbs nothing. "
        "In a terminal it is live until Ctrl-C.",
    )
    detail = "show the loaders of one process in detail, with their workers"
    top.add_argument("pid", nargs="?", type=_number(1), metavar="PID", help=detail)
    top.add_argument("--once", action="store_true", help="print once, also in a terminal")


def _add_pack(commands: Any) -> None:
    pack = commands.add_parser(
        "pack",
        help="pack a folder of images into MXNet's .rec and .idx",
        description="Write the images of a folder, or of a list, into one .rec file with its .idx, which "
        "penstock.records.RecordFile and MXNet read. Files are packed unchanged unless --resize is given; each is "
        "decoded to check that it is complete. The files get their names when all images are written.",
    )
    pack.add_argument("folder", help="a folder with one folder for each class (any folder, with --list)")
    pack.add_argument("out", metavar="OUT.rec", help="the file to write")
    pack.add_argument(
        "--list",
        metavar="FILE",
        help="a file of images and labels: a path in the folder and a number on each line, or MXNet's .lst",
    )
    for flag, kind, metavar, text in (
        ("--resize", _number(1), "N", "shrink images to N pixels on the shorter side"),
        ("--quality", _number(1, 100), "Q", "JPEG quality of resized images (default: 95)"),
        ("--shuffle", _number(0), "SEED", "write in the random order of this seed"),
        ("--workers", _number(0), "N", "worker processes (default: one for each CPU)"),
    ):
        pack.add_argument(flag, type=kind, metavar=metavar, help=text)
    pack.add_argument("--skip-bad", action="store_true", help="leave out files that cannot be decoded")
    pack.add_argument("--force", action="store_true", help="replace existing files")


def _run(options: argparse.Namespace) -> int:
    # Imported late: rich, the loader and OpenCV would slow down --help.
    if options.command == "demo":
        from penstock import _demo

        return _demo.run()
    if options.command == "top":
        from penstock import _top

        return _top.run(options.pid, options.once)
    try:
        from penstock.records import _pack
    except ImportError as error:
        print(f"penstock pack: {error}", file=sys.stderr)
        return 1
    return _pack.run(options)


def _number(least: int, most: int | None = None) -> Callable[[str], int]:
    def number(word: str) -> int:
        value = int(word)
        if value < least or (most is not None and value > most):
            allowed = f"from {least} to {most}" if most else f"{least} or more"
            raise argparse.ArgumentTypeError(f"{value} is not {allowed}")
        return value

    return number
