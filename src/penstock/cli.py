"""The command `penstock`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence

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
        "two workers, check that the stream equals the inline one, and show what it took. Exits with 1 if "
        "anything shown is not true.",
    )
    pack = commands.add_parser(
        "pack",
        help="pack a folder of images into MXNet's .rec and .idx",
        description="Write the images of a folder, or of a list, into one .rec file with its .idx, which "
        "penstock.records.RecordFile and MXNet read. Files are packed as they are, unless they are resized; each is "
        "decoded to see that it is whole. Until the end, the file has another name.",
    )
    pack.add_argument("folder", help="a folder whose folders are the classes (any folder, with --list)")
    pack.add_argument("out", metavar="OUT.rec", help="the file to write")
    pack.add_argument(
        "--list",
        metavar="FILE",
        help="images and labels: a path in the folder and a number on each line, or MXNet's .lst",
    )
    pack.add_argument(
        "--resize", type=_number(1), metavar="N", help="shrink images to N pixels on the shorter side"
    )
    pack.add_argument(
        "--quality", type=_number(1, 100), metavar="Q", help="of the JPEGs that --resize makes (95)"
    )
    pack.add_argument(
        "--shuffle", type=_number(0), metavar="SEED", help="write in the random order of this seed"
    )
    pack.add_argument("--skip-bad", action="store_true", help="leave out what cannot be decoded, and list it")
    pack.add_argument("--force", action="store_true", help="replace the file if it is there")
    pack.add_argument(
        "--workers", type=_number(0), metavar="N", help="processes that read (as many as cores)"
    )
    options = parser.parse_args(arguments)

    try:
        return _pack(options) if options.command == "pack" else _demo()
    except KeyboardInterrupt:
        if options.command == "pack":
            print("penstock pack: stopped. Nothing was written.", file=sys.stderr)
        return 128 + signal.SIGINT


# rich, the loader and OpenCV cost more to import than --help should.


def _demo() -> int:
    from penstock._demo import run

    return run()


def _pack(options: argparse.Namespace) -> int:
    try:
        from penstock.records._pack import run
    except ImportError as error:
        print(f"penstock pack: {error}", file=sys.stderr)
        return 1
    return run(options)


def _number(least: int, most: int | None = None) -> Callable[[str], int]:
    def number(word: str) -> int:
        value = int(word)
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(
                f"{value} is not {least} or more" + (f", up to {most}" if most else "")
            )
        return value

    return number
