"""What a browser would find on the built site: dead links and anchors, requests to other servers, missing names."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from website import reference
from website.pages import SiteError

_LOADS = {("script", "src"), ("img", "src"), ("source", "srcset"), ("iframe", "src")}


class _Document(HTMLParser):
    """The anchors of a page, the addresses of its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.unresolved: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "autoref":
            self.unresolved.append(found.get("identifier", "?"))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        self.loads += [found[name] for kind, name in _LOADS if kind == tag and name in found]
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(found["href"])


def check(site: Path) -> None:
    documents = {path: _Document(path.read_text()) for path in site.rglob("*.html")}
    wrong = [
        f"{path.relative_to(site)}: {complaint}"
        for path, document in documents.items()
        if path.name != "404.html"
        for complaint in _complaints(path, document, documents)
    ]
    wrong += [f"{name} is in no page of the reference" for name in _missing(site, documents)]
    if wrong:
        raise SiteError(f"{len(wrong)} faults in the built pages:\n" + "\n".join(wrong[:100]))


def _complaints(path: Path, document: _Document, documents: dict[Path, _Document]) -> list[str]:
    found = [f"no object has the name {name}, which a docstring or page refers to" for name in document.unresolved]
    found += [f"loads {address} from another server" for address in document.loads if urlsplit(address).netloc]
    for link in document.links:
        address, anchor = urldefrag(link)
        if urlsplit(link).scheme or urlsplit(link).netloc:
            continue
        target = (path.parent / unquote(address)).resolve() if address else path
        target = target / "index.html" if target.is_dir() else target
        if not target.is_file():
            found.append(f"links to {link}, which does not exist")
        elif anchor and target in documents and unquote(anchor) not in documents[target].anchors:
            found.append(f"links to {link}, which has no such anchor")
    return found


def _missing(site: Path, documents: dict[Path, _Document]) -> list[str]:
    """The public names that have no heading in the reference."""
    anchors = {
        anchor
        for path, document in documents.items()
        if path.is_relative_to(site / "reference")
        for anchor in document.anchors
    }
    return sorted({".".join(home) for home in reference.homes().values()} - anchors)
