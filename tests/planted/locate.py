"""Bugs of a list that have no place in the working tree any more, or another one, after the code has moved.

    python -m tests.planted.locate [list]
"""

from __future__ import annotations

import importlib
import sys

from tests.planted.run import ROOT


def main() -> None:
    bugs = importlib.import_module(f"tests.planted.{(*sys.argv[1:], 'after')[0]}").BUGS
    source = ROOT / "src/penstock"
    texts = {path.relative_to(source): path.read_text() for path in sorted(source.rglob("*.py"))}
    lost = []
    for bug in bugs:
        places = {str(path): text.count(bug.old) for path, text in texts.items() if bug.old in text}
        if places.get(bug.file) == 1:
            continue
        if list(places.values()) == [1]:
            print(f"{bug.name}: now in {next(iter(places))}")
        else:
            lost.append(f"{bug.name} ({sum(places.values())} places; was in {bug.file})\n    {bug.why}")
    print(f"{len(bugs) - len(lost)} of {len(bugs)} have one place.")
    if lost:
        print("To be planted anew:", *lost, sep="\n")


if __name__ == "__main__":
    main()
