"""The `penstock` command."""

from __future__ import annotations

import argparse
import io
import math
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from penstock import __version__
from penstock._printable import printable

__all__ = ["main"]

_SIGPIPE = 13  # the module signal has no such name on Windows


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code.

    >>> import contextlib, io, tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp(), "words.txt")
    >>> path.write_text("one\\ntwo\\n")
    8
    >>> with contextlib.redirect_stdout(io.StringIO()) as printed:
    ...     code = main(["inspect", str(path)])
    >>> code, "2 samples" in printed.getvalue()
    (0, True)
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for characters that the terminal cannot show
    try:
        try:
            return _parse_and_run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        return 128 + _SIGPIPE


def _parse_and_run(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="penstock", description="A data loader: a dataset at one end, a training step at the other."
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser(
        "demo",
        help="stream a small dataset for two epochs with two workers, and check it (under 30 s)",
        description="Write a small image-like dataset to a temporary folder, stream it for two epochs with "
        "two workers, check that the batches equal those of the plain loop, and print the times. Exits with "
        "1 if a check fails.",
    )
    _add_profile(commands)
    _add_top(commands)
    _add_pack(commands)
    _add_inspect(commands)
    _add_index(commands)
    _add_explain(commands)
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0

    try:
        return _run(options)
    except KeyboardInterrupt:
        if options.command == "pack":
            print("penstock pack: stopped. Nothing was written.", file=sys.stderr)
        return 128 + signal.SIGINT


def _nobody_reads() -> bool:
    """True if the program that reads our output (such as `head`) has exited. If so, discards further output."""
    output, gone = sys.stdout.fileno(), True
    if hasattr(select, "poll"):  # Windows has none
        poll = select.poll()
        poll.register(output, 0)
        gone = any(event & select.POLLERR for _, event in poll.poll(0))
    if gone:  # Python would fail to flush its buffer at exit
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, output)
        os.close(nowhere)
    return gone


def _add_profile(commands: Any) -> None:
    profile = commands.add_parser(
        "profile",
        help="try a dataset with different workers, and recommend settings",
        description="Load batches of a dataset with the plain loop, with threads and with processes, for a few "
        "seconds each, and print how fast each was, what the bottleneck is, and which settings to use.",
    )
    what = "module:name or file.py:name of a dataset, or of a class or function that makes one without arguments"
    profile.add_argument("dataset", metavar="module:dataset", help=what)
    size = "samples in a batch (default: 64)"
    profile.add_argument("--batch-size", type=_number(1), default=64, metavar="N", help=size)
    profile.add_argument("--collate", metavar="module:function", help="the collate_fn (default: default_collate)")
    profile.add_argument("--seconds", type=_seconds, default=3.0, metavar="S", help="length of a trial (default: 3)")
    step = "simulate a training step of S seconds in which the CPU is idle, as with a GPU"
    profile.add_argument("--step", type=_seconds, default=0.0, metavar="S", help=step)
    most = "the most workers to try (default: 32)"
    profile.add_argument("--max-workers", type=_number(1), default=32, metavar="N", help=most)
    profile.add_argument("--html", metavar="PATH", help="write the figures of the recommended settings to a page")


def _add_top(commands: Any) -> None:
    top = commands.add_parser(
        "top",
        help="show the running loaders of this user",
        description="List the running penstock loaders of this user on this machine, with their speed, and how much "
        "their programs wait for them. It reads figures that each loader writes to memory every two seconds, and "
        "does not disturb the loaders. In a terminal, the list is updated until Ctrl-C.",
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
        "decoded to check that it is complete. The two files appear under their names when all images are written.",
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


def _add_inspect(commands: Any) -> None:
    inspect = commands.add_parser(
        "inspect",
        help="show the format, the fields and the first samples of files",
        description="Print the format of files, how many samples they hold, the fields of a sample, and the first "
        "samples. The format is found by content and name: Parquet, Arrow, tar, JSON lines, text, token files, .rec, "
        "LMDB, folders of images.",
    )
    inspect.add_argument("path", metavar="PATH", help="a file, a folder, a URL, or a pattern in quotes")
    first = "how many of the first samples to show (default: 3)"
    inspect.add_argument("--samples", type=_number(0), default=3, metavar="N", help=first)
    inspect.add_argument("--dtype", metavar="NAME", help="dtype of a file of token ids, such as uint16")
    inspect.add_argument("--length", type=_number(1), metavar="N", help="ids in a sample of a file of token ids")
    _add_storage(inspect)


def _add_index(commands: Any) -> None:
    index = commands.add_parser(
        "index",
        help="write an index beside tar shards",
        description="Find the samples in tar shards, and write their positions to penstock.index, in the same folder "
        "or bucket, where penstock.formats.Tar finds it. Then no machine has to read whole shards to find samples. "
        "Entries of other shards in an existing index are kept.",
    )
    what = "shards, folders or URLs, patterns in quotes, or ranges such as train-{000..099}.tar"
    index.add_argument("shards", nargs="+", metavar="SHARDS", help=what)
    out = "write the index to this local file instead; pass it as Tar(..., index=FILE), or copy it beside the shards"
    index.add_argument("--out", metavar="FILE", help=out)
    _add_storage(index)


def _add_explain(commands: Any) -> None:
    explain = commands.add_parser(
        "explain",
        help="show which samples were, or will be, in a step",
        description="Print the samples of a step on every rank, and where they come from. Only the resume state "
        "is needed if the order is sequential or shuffle=True; for other orders, and to see the sources, name the "
        "loader. No data is read.",
    )
    explain.add_argument("state", metavar="STATE.json", help="a file with the result of loader.state_dict()")
    explain.add_argument("--step", type=_number(0), required=True, metavar="N", help="the step, as in Batch.step")
    explain.add_argument("--epoch", type=_number(0), metavar="E", help="the epoch (default: that of the state)")
    what = "module:name or file.py:name of the loader, or of a function that makes it without arguments"
    explain.add_argument("--loader", metavar="module:object", help=what)


def _add_storage(command: argparse.ArgumentParser) -> None:
    text = "an option of the store of a URL, such as endpoint=http://127.0.0.1:9000 or anon=true; may be repeated"
    command.add_argument("--storage", type=_option, action="append", metavar="KEY=VALUE", default=[], help=text)


def _run(options: argparse.Namespace) -> int:
    # Imported late: rich, the loader and OpenCV would slow down --help.
    if options.command == "demo":
        from penstock._tools import demo

        return demo.run()
    if options.command == "profile":
        from penstock._tools.profile import run

        return run.run(options)
    if options.command == "top":
        from penstock._tools import top

        return top.run(options.pid, options.once)
    if options.command == "inspect":
        from penstock._tools import inspect as _show

        given = {"dtype": options.dtype, "length": options.length, "storage": dict(options.storage) or None}
        settings = {name: value for name, value in given.items() if value is not None}
        return _show.run(options.path, options.samples, settings)
    if options.command == "index":
        from penstock._tools import index as _indexing

        return _indexing.run(options.shards, options.out, dict(options.storage))
    if options.command == "explain":
        from penstock._tools import explain

        return explain.run(options.state, options.step, options.epoch, options.loader)
    try:
        from penstock.records import _pack
    except ImportError as error:
        print(printable(f"penstock pack: {error}", lines=True), file=sys.stderr)
        return 1
    return _pack.run(options)


def _seconds(word: str) -> float:
    value = float(word)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{value:g} is not a number of seconds")
    return value


def _option(word: str) -> tuple[str, str | bool]:
    name, mark, value = word.partition("=")
    if not name or not mark:
        raise argparse.ArgumentTypeError("it is not of the form KEY=VALUE")  # without the word, which may be a secret
    return name, {"true": True, "false": False}.get(value.lower(), value)


def _number(least: int, most: int | None = None) -> Callable[[str], int]:
    def number(word: str) -> int:
        value = int(word)
        if value < least or (most is not None and value > most):
            allowed = f"from {least} to {most}" if most else f"{least} or more"
            raise argparse.ArgumentTypeError(f"{value} is not {allowed}")
        return value

    return number
