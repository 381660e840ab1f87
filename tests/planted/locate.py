"""Where the bugs of a list would be planted in the working tree: help for moving a list after the code has moved.

    python -m tests.planted.locate [list]
"""

from __future__ import annotations

import importlib
import sys

from tests.planted.run import ROOT


def main() -> None:
    bugs = importlib.import_module(f"tests.planted.{(*sys.argv[1:], 'before')[0]}").BUGS
    source = ROOT / "src/penstock"
    texts = {path.relative_to(source): path.read_text() for path in sorted(source.rglob("*.py"))}
    lost = []
    for bug in bugs:
        places = [str(path) for path, text in texts.items() for _ in range(text.count(bug.old))]
        if len(places) == 1:
            print(f"{bug.name}: {places[0]}")
        else:
            lost.append(f"{bug.name} ({len(places)} places; was in {bug.file})\n    {bug.why}")
    print(f"\n{len(bugs) - len(lost)} of {len(bugs)} have one place. To be planted anew:", *lost, sep="\n")


if __name__ == "__main__":
    main()
