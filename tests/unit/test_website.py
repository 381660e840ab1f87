"""The pages of the site fit together: what can be checked without building it. (`make docs` builds and checks it.)"""

from __future__ import annotations

import importlib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from website import pages, reference
from website.__main__ import llms

ROOT = Path(__file__).parents[2]


def test_every_page_is_in_the_list_once() -> None:
    groups = pages.contents()
    assert sum(len(group.pages) for group in groups) > 30
    assert [page.title for group in groups for page in group.pages if not page.description] == []


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """Two pages and a list of both."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "one.md").write_text("# One\n")
    (folder / "two.md").write_text("# Two\n")
    (folder / "index.md").write_text(
        "# Home\n\n## All pages\n\n### Group\n\n- [One](one.md): the first\n- [Two](two.md): the\n  second\n"
    )
    return folder


def test_a_group_has_its_pages_with_their_descriptions(docs: Path) -> None:
    (group,) = pages.contents(docs)
    assert [(page.title, page.path.name, page.description) for page in group.pages] == [
        ("One", "one.md", "the first"),
        ("Two", "two.md", "the second"),
    ]


def test_a_page_that_is_missing_in_the_list_is_named(docs: Path) -> None:
    (docs / "three.md").write_text("# Three\n")
    with pytest.raises(pages.SiteError, match=r"1 pages are not listed in docs/index\.md .*: docs/three\.md"):
        pages.contents(docs)


def test_a_page_that_does_not_exist_is_named(docs: Path) -> None:
    (docs / "two.md").unlink()
    with pytest.raises(pages.SiteError, match=r"do not exist: docs/two\.md"):
        pages.contents(docs)


def test_a_page_that_is_listed_twice_is_named(docs: Path) -> None:
    with (docs / "index.md").open("a") as file:
        file.write("- [One again](one.md): the first\n")
    with pytest.raises(pages.SiteError, match=r"more than once in docs/index\.md: docs/one\.md"):
        pages.contents(docs)


def test_a_line_of_the_list_that_is_not_an_entry_is_shown(docs: Path) -> None:
    with (docs / "index.md").open("a") as file:
        file.write("- [One](one.md), [Two](two.md): both\n")
    with pytest.raises(pages.SiteError, match=r"this line is not .*: - \[One\]\(one\.md\), \[Two\]"):
        pages.contents(docs)


def test_every_decision_is_in_its_list_once() -> None:
    listed = [page.path.name for page in pages.decisions()]
    assert listed == sorted(path.name for path in (ROOT / "docs" / "decisions").glob("0*.md"))


def test_files_outside_of_docs_come_along_and_pages_link_to_the_copies(tmp_path: Path) -> None:
    pages.copied([ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "from-other-loaders.md"], tmp_path)
    text = (tmp_path / "benchmarks.md").read_text()
    results = re.findall(r"\]\((repository/bench/results/[^)]*)\)", text)
    assert len(results) > 5 and all((tmp_path / path).is_file() for path in results)
    assert "](../" not in text
    program = (tmp_path / "repository/examples/torchtitan_loader.py.md").read_text()
    assert (ROOT / "examples/torchtitan_loader.py").read_text() in program


def test_a_picture_follows_the_switch_of_the_site(tmp_path: Path) -> None:
    pages.copied([ROOT / "docs" / "benchmarks.md"], tmp_path)
    text = (tmp_path / "benchmarks.md").read_text()
    assert "<picture>" not in text
    assert "(pictures/speed-light.svg#only-light)" in text and "(pictures/speed-dark.svg#only-dark)" in text


def test_a_link_in_a_code_block_stays_as_it_is() -> None:
    text = "[a](b.md)\n```\n[c](d.md)\n```\n[`e[f]`](g.md#h)\n"
    assert [link[2] for link in pages.links(text)] == ["b.md", "g.md"]


def test_llms_txt_lists_every_page_with_what_it_is_about() -> None:
    groups = pages.contents()
    text = llms(groups)
    for group in groups:
        assert f"## {group.title}\n" in text
        for page in group.pages:
            assert f"- [{page.title}]({pages.place(page.path)}): {page.description}\n" in text


IMPORTABLE = [name for name in reference.modules() if not re.search(r"\.(torch|jax)\b", name)]


@pytest.mark.parametrize("name", IMPORTABLE)
def test_the_reference_has_the_names_of_a_module(name: str) -> None:
    assert reference.modules()[name] == list(importlib.import_module(name).__all__)


@pytest.mark.imports_torch
def test_the_reference_has_the_names_that_the_torch_face_adds() -> None:
    theirs = importlib.import_module("torch.utils.data").__all__
    ours = importlib.import_module("penstock.torch").__all__
    assert reference.modules()["penstock.torch"] == ours[len(theirs) :]


@pytest.mark.parametrize("name", IMPORTABLE)
def test_a_name_is_documented_where_its_object_is(name: str) -> None:
    homes = reference.homes()
    for each in reference.modules()[name]:
        home = homes[reference.definition(name, each)]
        assert getattr(importlib.import_module(home.module), home.name) is getattr(
            importlib.import_module(name), each
        )


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    text = "\n".join(reference.pages().values())
    for home in reference.homes().values():
        assert text.count(f"::: {home.module}.{home.name}\n") == 1


NEED_NO_EXAMPLE = {
    "penstock.InternalError": "a bug in penstock",
    "penstock.errors.PanicError": "a bug in a library",
    "penstock.errors.RemoteError": "needs a server that fails: tests/remote",
    "penstock.errors.RemoteFileNotFound": "needs a server",
    "penstock.errors.RecordError": "another name of FormatError",
    "penstock.backends.Change": "the type of a function",
    "penstock.testing.simulate.Choose": "the type of a function",
    "penstock.plan.LocalRows": "the type of some rows",
}


def test_every_public_name_has_an_example() -> None:
    used = reference.examples()
    without = [
        f"{home.module}.{home.name}"
        for home in reference.homes().values()
        if not reference.has_own_example(home) and f"{home.module}.{home.name}" not in used
    ]
    assert sorted(without) == sorted(NEED_NO_EXAMPLE), (
        "an example in the docstring, or a program on a page, must use each of these"
    )


@pytest.mark.skipif(find_spec("griffe") is None, reason="griffe is in the environment of `make docs`")
def test_docstrings_become_markdown_with_links_and_blocks() -> None:
    from website.docstrings import Docstrings

    text = "See `penstock.pad` and `DataLoader` (docs/mixtures.md).\n\n>>> 1 + 1\n2\n\nAnd `dict` stays."
    assert Docstrings().as_markdown(text) == (
        "See [`penstock.pad`][penstock.pad] and [`DataLoader`][penstock.DataLoader] ([Mixtures](../mixtures.md)).\n\n"
        "```pycon\n>>> 1 + 1\n2\n```\n\nAnd `dict` stays."
    )
