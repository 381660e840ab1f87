"""Planted bugs that have no place in the working tree any more, or another one, after the code has moved.

python -m tests.planted.locate
"""

from __future__ import annotations

from tests.planted.after import BUGS
from tests.planted.run import ROOT


def main() -> None:
    source = ROOT / "src/penstock"
    texts = {path.relative_to(source): path.read_text() for path in sorted(source.rglob("*.py"))}
    lost = []
    for bug in BUGS:
        places = {str(path): text.count(bug.old) for path, text in texts.items() if bug.old in text}
        if places.get(bug.file) == 1:
            continue
        if list(places.values()) == [1]:
            print(f"{bug.name}: now in {next(iter(places))}")
        else:
            lost.append(f"{bug.name} ({sum(places.values())} places; was in {bug.file})\n    {bug.why}")
    print(f"{len(BUGS) - len(lost)} of {len(BUGS)} have one place.")
    if lost:
        print("To be planted anew:", *lost, sep="\n")


if __name__ == "__main__":
    main()
