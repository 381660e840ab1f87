"""The command `penstock`."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence

from penstock import __version__


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
    parser.parse_args(arguments)

    from penstock.demo import run  # rich and the loader cost more to import than --help should

    try:
        return run()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
