"""Tar shards: the samples of WebDataset's rule, what members become, and what is said of bad ones."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import re
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import penstock
from penstock import DataLoader
from penstock._files.local import File
from penstock.errors import CollateError, FormatError, ImageError
from penstock.formats import FieldInfo, ShapedDecoder, Tar
from penstock.image import ImageFolder, Transform
from penstock.source._folders import PICTURES

law = settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMBER = iter(range(1 << 30))
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
Change = Callable[[tarfile.TarInfo], Any]


@pytest.fixture(autouse=True)
def no_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def write(
    folder: Path,
    members: Sequence[tuple[str, bytes]],
    kind: int = tarfile.USTAR_FORMAT,
    change: Change = lambda info: None,
) -> Path:
    path = folder / f"{next(NUMBER):06}.tar"
    with tarfile.open(path, "w", format=kind) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            change(info)
            tar.addfile(info, io.BytesIO(data))
    return path


def grouped(members: Sequence[tuple[str, bytes]]) -> list[dict[str, Any]]:
    """WebDataset's rule, as its documentation says it."""
    samples: list[dict[str, Any]] = []
    for name, data in members:
        folder, slash, base = name.rpartition("/")
        stem, _, end = base.partition(".")
        if not samples or samples[-1]["__key__"] != folder + slash + stem:
            samples.append({"__key__": folder + slash + stem})
        samples[-1][end.lower()] = data
    return samples


FOLDERS = st.sampled_from(["", "./", "a/", "a.b/c/", "ü/", "f" * 90 + "/" + "g" * 60 + "/"])
STEMS = st.sampled_from(["1", "2", "three", "x" * 99, "é☃", "s" * 140])
SAMPLES = st.lists(
    st.tuples(
        FOLDERS, STEMS, st.lists(st.sampled_from(["jpg", "CLS", "seg.png"]), min_size=1, max_size=3, unique=True)
    ),
    max_size=4,
)


@law
@given(
    shards=st.lists(SAMPLES, min_size=1, max_size=2),
    size=st.sampled_from([0, 1, 511, 512, 513]),
    kind=st.sampled_from(FORMATS[1:]),
)
def test_samples_are_those_that_were_written(tmp_path: Path, shards: list[Any], size: int, kind: int) -> None:
    paths, expected = [], []
    for number, samples in enumerate(shards):
        named = [
            (f"{folder}{at}{stem}.{end}", bytes([65 + at]) * size)
            for at, (folder, stem, ends) in enumerate(samples)
            for end in ends
        ]
        paths.append(write(tmp_path, named, kind))
        expected += grouped(named)
        assert number < 2
    found = Tar(paths, decode=False)
    assert list(found) == expected
    assert found.__getitems__(range(len(expected))[::-1]) == expected[::-1]
    assert found.blocks.tolist() == sorted({0, *found.edges.tolist()})


@pytest.mark.parametrize("kind", FORMATS)
def test_names_of_every_format_are_read(tmp_path: Path, kind: int) -> None:
    members = [("folder/" * 20 + "name.txt", b"one"), ("b.txt", b"two")]
    assert list(Tar(write(tmp_path, members, kind), decode=False)) == grouped(members)


def test_what_belongs_to_no_sample_is_left_out(tmp_path: Path) -> None:
    members = [
        ("folder/", b""),
        ("README", b"text"),
        ("a.txt", b"one"),
        ("__meta__/b.txt", b"x"),
        ("__index__", b"x"),
        (".hidden", b"x"),
        ("d/._a.txt", b"x"),
        ("a.cls", b"1"),
    ]
    assert list(Tar(write(tmp_path, members))) == [{"__key__": "a", "txt": "one", "cls": 1}]


def test_a_folder_entry_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "in" / "f").mkdir(parents=True)
    (tmp_path / "in" / "f" / "a.txt").write_text("one")
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(tmp_path / "in", ".")
    assert list(Tar(tmp_path / "x.tar")) == [{"__key__": "./f/a", "txt": "one"}]


def test_members_of_a_sample_that_are_apart_are_errors_of_that_sample(tmp_path: Path) -> None:
    found = Tar(write(tmp_path, [("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3")]))
    assert len(found) == 3 and found[1] == {"__key__": "b", "txt": "2"}
    with pytest.raises(FormatError, match=r"byte 2,048: member 'a.cls' belongs to sample 'a', .*up, at byte 0\."):
        found[2]
    with pytest.raises(FormatError, match=r"byte 0: member 'a.txt' belongs to sample 'a', .*down, at byte 2,048"):
        found[0]  # it lacks a member
    (batch,) = DataLoader(found, 4, on_error="skip")
    assert batch["__key__"] == ["b"]


def test_a_key_that_comes_again_is_an_error_of_the_later_sample(tmp_path: Path) -> None:
    found = Tar(write(tmp_path, [("a.cls", b"1"), ("b.cls", b"2"), ("a.cls", b"3"), ("c.cls", b"4")]))
    (batch,) = DataLoader(found, 4, on_error="skip")
    assert batch["cls"].tolist() == [1, 2, 4]


def test_a_tar_with_no_whole_sample_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    path = write(tmp_path, [("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3"), ("b.cls", b"4")])
    with pytest.raises(FormatError, match=r"byte 0: member 'a.txt' belongs to sample 'a', .*--sort=name"):
        Tar(path)


def encoded(kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((8, 9, 3), 200, np.uint8)).save(out, kind)
    return out.getvalue()


def saved(save: Any, *args: Any, **kwargs: Any) -> bytes:
    out = io.BytesIO()
    save(out, *args, **kwargs)
    return out.getvalue()


def test_members_are_decoded_by_the_ends_of_their_names(tmp_path: Path) -> None:
    order = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    members = [
        ("a.jpg", encoded("JPEG")),
        ("a.seg.PNG", encoded("PNG")),
        ("a.json", b'{"x": [1]}'),
        ("a.npy", saved(np.save, order)),
        ("a.npz", saved(np.savez, one=np.arange(2), two=order)),
        ("a.txt", "é".encode()),
        ("a.cls", b"7\n"),
        ("a.mp3", b"sound"),
    ]
    (sample,) = Tar(write(tmp_path, members), fields="jpg seg.png json npy npz txt cls mp3")
    assert sample["jpg"].shape == sample["seg.png"].shape == (8, 9, 3)
    assert (sample["seg.png"] == 200).all()
    assert (sample["json"], sample["txt"], sample["cls"], sample["mp3"]) == ({"x": [1]}, "é", 7, b"sound")
    assert np.array_equal(sample["npy"], order)
    assert sample["npz"]["one"].tolist() == [0, 1] and np.array_equal(sample["npz"]["two"], order)
    sample["npy"][:] = 0  # writable


def test_functions_replace_and_add_decoders(tmp_path: Path) -> None:
    members = [("a.jpg", encoded("JPEG")), ("a.txt", b"one"), ("a.cls", b"1"), ("a.seg.txt", b"two")]
    functions = {"jpg": Transform(crop=4, train=False), "txt": None, ".CLS": lambda data: -int(data), "seg.txt": len}
    (sample,) = Tar(write(tmp_path, members), decode=functions)
    assert sample["jpg"].shape == (3, 4, 4)
    assert (sample["txt"], sample["cls"], sample["seg.txt"]) == (b"one", -1, 3)


def test_what_is_said_of_jpeg_holds_for_jpg(tmp_path: Path) -> None:
    members = [("a.jpg", b"1"), ("b.jpeg", b"2"), ("c.JPE", b"3"), ("d.x.jpg", b"4")]
    path = write(tmp_path, members)
    values = [list(sample.values())[1] for sample in Tar(path, decode={"jpeg": int})]
    assert values == [1, 2, 3, 4]
    both = Tar(path, decode={"jpeg": int, "jpg": float, "jpe": None})
    assert [list(sample.values())[1] for sample in both] == [1.0, 2, b"3", 4.0]
    assert type(both[0]["jpg"]) is float


def test_only_the_fields_that_are_asked_for_are_read(tmp_path: Path) -> None:
    """As of a shard of img2dataset, whose JSON has nulls and other keys in each sample; none of it is decoded."""
    members = []
    for number in range(6):
        about = b'{"sha": null}' if number % 2 else b"{not JSON"
        members += [(f"{number}.json", about), (f"{number}.cls", b"%d" % number), (f"{number}.txt", b"text")]
        members += [(f"{number}.aux", b""), (f"{number}.AUX", b"")]  # twice, but nobody needs it
    path = write(tmp_path, members)
    data = Tar(path, fields=("txt", "cls"))
    assert list(data[1].items()) == [("__key__", "1"), ("txt", "text"), ("cls", 1)]  # in this order
    with DataLoader(data, 3, num_workers=2) as loader:
        assert [batch["cls"].tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]
    assert Tar(path, fields="cls txt")[0] == {"__key__": "0", "cls": 0, "txt": "text"}  # as webdataset's to_tuple
    assert Tar(path, fields=["json"])[1] == {"__key__": "1", "json": {"sha": None}}


def test_json_stays_bytes_unless_it_is_asked_for(tmp_path: Path) -> None:
    """Its values cannot be collated if they have nulls, or other keys in each sample."""
    texts = [b'{"a": null}', b'{"b": 1}', b"no JSON"]
    path = write(tmp_path, [(f"{number}.json", text) for number, text in enumerate(texts)])
    (batch,) = DataLoader(Tar(path), 3)
    assert batch["json"] == texts
    for data in (Tar(path, {"json": json.loads}), Tar(path, {"jsn": json.loads}), Tar(path, fields=["json"])):
        assert data[1]["json"] == {"b": 1}


def test_a_sample_that_lacks_a_field_is_a_bad_sample(tmp_path: Path) -> None:
    members = [("a.cls", b"1"), ("a.txt", b"x"), ("b.cls", b"2"), ("c.txt", b"y"), ("c.cls", b"3")]
    path = write(tmp_path, members)
    data = Tar(path, fields=("cls", "txt"))
    what = rf"{path}, byte 2,048: the sample 'b' has no member 'txt', but 'cls'\. .*on_error=\"skip\""
    with pytest.raises(FormatError, match=what):
        data[1]
    with DataLoader(data, 4, on_error="skip") as loader:
        (batch,) = loader
        assert batch["cls"].tolist() == [1, 3] and [key for key, _ in loader.skipped] == [1]


def test_a_field_may_be_one_of_several(tmp_path: Path) -> None:
    members = [("a.png", encoded("PNG")), ("b.jpeg", encoded("JPEG")), ("c.jpg", encoded("JPEG")), ("c.png", b"bad")]
    path = write(tmp_path, members)
    transform = Transform(crop=4, train=False)
    data = Tar(path, {"jpg": transform, "png": transform}, fields=["jpg;png"])
    (batch,) = DataLoader(data, 3)
    assert list(batch) == ["__key__", "jpg"] and batch["jpg"].shape == (3, 3, 4, 4)
    assert np.array_equal(batch["jpg"][1], data[1]["jpg"])
    assert not isinstance(data.__gather__([0, 1, 2], np.empty), type(NotImplemented))


@pytest.mark.parametrize(
    ("fields", "error"), [((), TypeError), (("jpg", 3), TypeError), (("jpg", "jpg"), ValueError)]
)
def test_wrong_fields_are_refused(tmp_path: Path, fields: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="fields"):
        Tar(write(tmp_path, [("a.jpg", b"")]), fields=fields)


def pictures(folder: Path, count: int) -> Path:
    """Images of different sizes, and their numbers."""
    members = []
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (20 + number, 40 - number, 3), np.uint8)
        members += [(f"{number}.jpg", saved(Image.fromarray(pixels).save, "JPEG")), (f"{number}.cls", b"%d" % number)]
    return write(folder, members)


@pytest.mark.parametrize("settings", [{}, {"dtype": {"cls": "int32"}}, {"num_workers": 2}], ids=str)
@pytest.mark.parametrize(
    "transform", [Transform(crop=16, mirror=True), Transform(resize=(9, 7), train=False)], ids=["crop", "resize"]
)
def test_a_batch_into_which_a_transform_writes_has_the_collated_samples(
    tmp_path: Path, transform: Transform, settings: dict[str, Any]
) -> None:
    path = pictures(tmp_path, 12)
    direct, collated = Tar(path, {"jpg": transform}), Tar(path, {"jpg": lambda data: transform(data)})
    assert collated.__gather__([0], np.empty) is NotImplemented
    assert direct.__gather__([], np.empty) is NotImplemented
    with (
        DataLoader(direct, 5, shuffle=True, seed=1, **settings) as ours,
        DataLoader(collated, 5, shuffle=True, seed=1) as plain,
    ):
        for batch, wanted in zip(ours, plain, strict=True):
            assert list(batch) == ["__key__", "jpg", "cls"]
            assert np.array_equal(batch["jpg"], wanted["jpg"]) and batch["jpg"].dtype == np.float32
            assert batch["cls"].tolist() == [int(key) for key in batch["__key__"]] == wanted["cls"].tolist()


class Counts:
    """A decoder of an author: how often each byte is there."""

    shape, dtype = (256,), "int32"

    def __init__(self, returned: bool = True) -> None:
        self.given: list[bool] = []
        self._returned = returned

    def __call__(self, data: bytes, out: Any = None) -> Any:
        self.given.append(out is not None)
        out = np.empty(256, np.int32) if out is None else out
        out[:] = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
        return out if self._returned else None


class Total(Counts):
    """A subclass whose results have another shape, and which does not write them into a batch."""

    def __call__(self, data: bytes) -> Any:  # type: ignore[override]
        return int(super().__call__(data).sum())


def test_a_decoder_with_a_shape_writes_into_the_batch(tmp_path: Path) -> None:
    path, counts = write(tmp_path, [(f"{n}.bin", bytes([n] * 3)) for n in range(4)]), Counts()
    assert isinstance(counts, ShapedDecoder) and isinstance(Transform(crop=4), ShapedDecoder)
    (batch,) = DataLoader(Tar(path, {"bin": counts}), batch_size=4)
    assert counts.given == [True] * 4
    assert batch["bin"].dtype == np.int32 and batch["bin"][:, :4].tolist() == (3 * np.eye(4, dtype=int)).tolist()
    (batch,) = DataLoader(Tar(path, {"bin": Total()}), batch_size=4)
    assert batch["bin"].tolist() == [3] * 4


def test_decoded_images_are_writable(tmp_path: Path) -> None:
    written = io.BytesIO()
    Image.new("RGB", (3, 2)).save(written, "png")
    assert Tar(write(tmp_path, [("a.png", written.getvalue())]))[0]["png"].flags.writeable


class Filled:
    """A decoder whose results have one shape: all elements are the first byte."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype

    def __call__(self, data: bytes, out: Any = None) -> Any:
        out = np.empty(self.shape, self.dtype) if out is None else out
        out[...] = data[0]
        return out


DECODERS: list[Any] = [
    Filled((2,), "float32"),
    Filled((2,), "uint8"),
    Filled((3,), "float32"),
    lambda data: np.full(2, 100 + data[0], np.float32),
    lambda data: np.full(3, 100 + data[0], np.float32),
    None,
]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["jpg", "png", "npy"]), min_size=1, max_size=5),
    st.lists(st.sampled_from(range(len(DECODERS))), min_size=3, max_size=3),
)
def test_a_field_of_several_members_is_gathered_as_its_samples_are_collated(
    tmp_path: Path, ends: list[str], chosen: list[int]
) -> None:
    path = write(tmp_path, [(f"{row}.{end}", bytes([row + 1])) for row, end in enumerate(ends)])
    decode = dict(zip(("jpg", "png", "npy"), (DECODERS[each] for each in chosen), strict=True))
    data, keys = Tar(path, decode, fields=("jpg;png;npy",)), list(range(len(ends)))

    def garbage(shape: Any, dtype: Any) -> Any:
        return np.full(shape, 77, dtype)

    try:
        wanted = penstock.default_collate([data[key] for key in keys])["jpg"]
    except CollateError:
        with suppress(CollateError):
            assert data.__gather__(keys, garbage) is NotImplemented
        with pytest.raises(CollateError):
            list(DataLoader(data, len(keys)))
        return
    (batch,) = DataLoader(data, len(keys))
    assert batch["jpg"].dtype == wanted.dtype if isinstance(wanted, np.ndarray) else batch["jpg"] == wanted
    gathered = data.__gather__(keys, garbage)
    for found in [batch] if gathered is NotImplemented else [batch, gathered]:
        assert np.array_equal(np.asarray(found["jpg"]), np.asarray(wanted))


@pytest.mark.parametrize(
    ("decode", "fields", "said"),
    [
        (
            {"pgn": bytes.hex},
            None,
            r"for 'pgn', but the first members of .* have 'png', 'seg.png', 'cls' and not this",
        ),
        ({"pgn": bytes.hex}, ("png", "cls"), "for 'pgn', but none of the fields 'png', 'cls' has this extension"),
        ({"jpg": bytes.hex}, "png", "for 'jpg', but none of the fields 'png' has"),
        ({"png": None, "Cls": None, ".seg.png": None}, None, None),
        ({"jpg": bytes.hex, "npy": None}, None, None),  # penstock knows them: other tars may have them
        ({"jpeg": bytes.hex}, "jpg;png", None),
    ],
)
def test_an_extension_in_decode_that_nothing_has_is_warned_of(
    tmp_path: Path, decode: Any, fields: Any, said: str | None
) -> None:
    path = write(tmp_path, [(f"{at}.{end}", b"1") for at in range(3) for end in ("png", "seg.png", "cls")])
    with nullcontext() if said is None else pytest.warns(UserWarning, match=said):
        Tar(path, decode, fields=fields)


class Refusing(Counts):
    """A decoder that does not write into a part of a batch."""

    def __call__(self, data: bytes, out: Any = None) -> Any:
        if out is not None:
            raise BufferError("strides")
        return super().__call__(data)


def test_a_decoder_that_refuses_its_place_in_the_batch_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, [("a.bin", b"123")])
    with pytest.raises(BufferError, match="strides") as caught:
        next(iter(DataLoader(Tar(path, {"bin": Refusing()}), batch_size=1)))
    notes = "\n".join(caught.value.__notes__)
    assert re.search(
        r"The decoder <.*Refusing.*> was given out=.* int32 of shape \(256,\) with strides \(4,\)", notes
    )


def test_a_decoder_that_does_not_return_what_it_was_given_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, [("a.bin", b"123")])
    with pytest.raises(TypeError, match="takes out=, so it must write its result into it, and return it"):
        next(iter(DataLoader(Tar(path, {"bin": Counts(returned=False)}), batch_size=1)))


def test_a_sample_without_the_image_of_the_others_is_named(tmp_path: Path) -> None:
    members = [("a.jpg", encoded("JPEG")), ("a.cls", b"0"), ("b.cls", b"1")]
    data = Tar(write(tmp_path, members), {"jpg": Transform(crop=4, train=False)})
    with pytest.raises(CollateError, match=r"row 1 lacks \['jpg'\]"):
        list(DataLoader(data, batch_size=2))


def test_an_image_that_cannot_be_decoded_into_the_batch_is_named(tmp_path: Path) -> None:
    members = [("a.jpg", encoded("JPEG")), ("b.jpg", b"no image"), ("c.jpg", encoded("JPEG"))]
    data = Tar(write(tmp_path, members), {"jpg": Transform(crop=4, train=False)})
    with pytest.raises(ImageError) as caught:
        list(DataLoader(data, batch_size=3))
    assert any("member 'b.jpg'" in note for note in caught.value.__notes__)
    (batch,) = DataLoader(data, batch_size=3, on_error="skip")
    assert batch["__key__"] == ["a", "c"] and batch["jpg"].shape == (2, 3, 4, 4)


def test_pickles_need_a_function(tmp_path: Path) -> None:
    path = write(tmp_path, [("a.pkl", pickle.dumps([1, 2])), ("b.state.pth", b"")])
    with pytest.raises(FormatError, match=r"\.tar, member 'a.pkl', byte 512: it is a pickle, which can run any"):
        Tar(path)[0]
    with pytest.raises(FormatError, match=r"decode=\{'pth': pickle.loads\}; with None the bytes stay"):
        Tar(path)[1]
    assert Tar(path, decode={"pth": None})[1]["state.pth"] == b""
    assert Tar(path, decode={"pkl": pickle.loads})[0]["pkl"] == [1, 2]
    assert Tar(path, decode=False)[0]["pkl"] == pickle.dumps([1, 2])


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.json", b"{", "Expecting"),
        ("a.cls", b"cat", "invalid literal"),
        ("a.txt", b"\xff", "codec can't decode"),
        ("a.jpg", b"not an image", "cannot be decoded as an image"),
        ("a.npy", b"not an array", "magic"),
        ("a.npy", saved(np.save, np.arange(9))[:-1], "buffer size|cannot reshape"),
        ("a.npy", saved(np.save, np.array([{}]), allow_pickle=True), "Python objects"),
        ("a.npz", b"PK", "zip"),
    ],
)
def test_a_member_that_cannot_be_decoded_is_named(tmp_path: Path, name: str, data: bytes, why: str) -> None:
    fields = f"txt;{name[2:]}"
    found = Tar(write(tmp_path, [("0.txt", b""), (name, data)]), fields=[fields])
    assert found[0]["txt"] == ""
    with pytest.raises(FormatError, match=rf"\.tar, member '{name}', byte 1,024: .*({why}).*or keep its bytes with"):
        found[1]


def test_an_error_of_the_users_function_keeps_its_type_and_names_the_member(tmp_path: Path) -> None:
    def fail(data: bytes) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as raised:
        Tar(write(tmp_path, [("a.txt", b"")]), decode={"txt": fail})[0]
    assert "While decoding" in raised.value.__notes__[0] and "member 'a.txt', byte 512" in raised.value.__notes__[0]


@pytest.mark.parametrize("decode", [3, {"txt": "utf-8"}])
def test_a_wrong_decode_is_refused(tmp_path: Path, decode: Any) -> None:
    with pytest.raises(TypeError, match="decode"):
        Tar(write(tmp_path, [("a.txt", b"")]), decode=decode)


def change_kind(kind: bytes) -> Change:
    def change(info: tarfile.TarInfo) -> None:
        if info.name == "b.txt":
            info.type, info.linkname = kind, "a.txt"

    return change


@pytest.mark.parametrize(("kind", "what"), [(tarfile.SYMTYPE, "a symbolic link"), (tarfile.LNKTYPE, "a hard link")])
def test_a_link_is_an_error_of_its_sample(tmp_path: Path, kind: bytes, what: str) -> None:
    path = write(tmp_path, [("a.txt", b"one"), ("b.txt", b""), ("c.txt", b"three")], change=change_kind(kind))
    found = Tar(path)
    assert (found[0]["txt"], found[2]["txt"]) == ("one", "three")
    with pytest.raises(FormatError, match=rf"member 'b.txt', byte 1,536: it is {what}, .*--hard-dereference"):
        found[1]


def test_a_sparse_file_is_an_error_of_its_sample(tmp_path: Path) -> None:
    def change(info: tarfile.TarInfo) -> None:
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}

    path = write(tmp_path, [("a.txt", b"one")], tarfile.PAX_FORMAT, change)
    with pytest.raises(FormatError, match="it is a sparse file"):
        Tar(path)[0]


@pytest.mark.parametrize("holes", [1, 5, 100])
def test_an_old_sparse_file_is_an_error_of_its_sample(tmp_path: Path, holes: int) -> None:
    """As GNU tar writes one. Its header has room for four parts; further headers have 21 more each."""
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text(name)
    with open(tmp_path / "b.txt", "wb") as file:
        for part in range(holes):
            file.seek((2 * part + 1) << 16)
            file.write(b"end")
    path, names = tmp_path / "some.tar", ["a.txt", "b.txt", "c.txt"]
    subprocess.run(["tar", "-C", tmp_path, "--format=gnu", "--sparse", "-cf", path, *names], check=True)
    with tarfile.open(path) as tar:
        assert [member.type for member in tar] == [b"0", b"S", b"0"]
    found = Tar(path)
    assert len(found) == 3 and (found[0]["txt"], found[2]["txt"]) == ("a.txt", "c.txt")
    with pytest.raises(FormatError, match=r"member 'b.txt', .*it is a sparse file, .*without --sparse"):
        found[1]


def test_a_member_of_an_unknown_kind_is_an_error_of_its_tar(tmp_path: Path) -> None:
    path = write(tmp_path, [("b.txt", b"")], change=change_kind(b"M"))
    with pytest.raises(FormatError, match=r"byte 0: member 'b.txt' is of kind b'M', .*plain files only"):
        Tar(path)


def test_a_field_that_comes_twice_is_an_error_of_its_sample(tmp_path: Path) -> None:
    path = write(tmp_path, [("a.jpg", b"1"), ("a.JPG", b"2"), ("b.__key__", b"")])
    for key, field in ((0, "jpg"), (1, "__key__")):
        with pytest.raises(FormatError, match=rf"has a second member '{field}'. Rename"):
            Tar(path, decode=False)[key]


def test_the_size_in_a_posix_header_counts(tmp_path: Path) -> None:
    def change(info: tarfile.TarInfo) -> None:
        info.pax_headers = {"size": str(info.size), "comment": "of no use"}

    path = write(tmp_path, [("a.txt", b"one"), ("b.txt", b"two")], tarfile.PAX_FORMAT, change)
    content = bytearray(path.read_bytes())
    header = content[1024:1536]  # after that of POSIX and its lines; its size becomes 0, as with 8 GB or more
    assert header[:5] == b"a.txt"
    header[124:136], header[148:156] = b"0" * 11 + b"\0", b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content[1024:1536] = header
    path.write_bytes(content)
    assert [sample["txt"] for sample in Tar(path)] == ["one", "two"]


def test_a_size_beyond_octal_digits_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, [("a.txt", b"one")])
    content = bytearray(path.read_bytes())
    content[124:136] = b"\x80" + (3).to_bytes(11, "big")
    content[148:156] = b"%06o\0 " % (sum(content[:148]) + 256 + sum(content[156:512]))
    path.write_bytes(content)
    assert Tar(path)[0]["txt"] == "one"


@pytest.mark.parametrize("size", [515, 1000, 1024])
def test_a_tar_without_its_end_is_cut_off(tmp_path: Path, size: int) -> None:
    path = write(tmp_path, [("a.txt", b"one")])
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(FormatError, match=rf"byte {size:,}: the archive ends here without the zeros .* head -c 1024"):
        Tar(path)
    with path.open("ab") as file:
        file.write(bytes(1024))
    assert len(Tar(path)) == 1


def test_a_member_that_is_cut_off_is_an_error_of_its_sample(tmp_path: Path) -> None:
    path = write(tmp_path, [("a.txt", b"one"), ("b.txt", b"two" * 500)])
    path.write_bytes(path.read_bytes()[:2000])
    found = Tar(path)
    assert len(found) == 2 and found[0]["txt"] == "one"
    what = r"byte 1,024: member 'b.txt' should have 1,500 bytes, .* byte 2,000.* The 1 sample before it can be read"
    with pytest.raises(FormatError, match=what):
        found[1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("end", [0, 300, 515, 1024, 1500, 2048, 2600, 3072, 3600])
def test_of_a_tar_that_is_cut_off_the_samples_before_the_cut_are_served(
    tmp_path: Path, end: int, workers: int
) -> None:
    """Each sample has two members of 1,024 bytes; where a sample may lack the second, it is not served."""
    names = [[f"{shard}{sample}" for sample in range(4)] for shard in range(3)]
    paths = [
        write(tmp_path, [(f"{name}.{field}", b"1") for name in some for field in ("cls", "id")]) for some in names
    ]
    paths[1].write_bytes(paths[1].read_bytes()[:end])
    data = Tar(paths)
    whole = names[1][: max(0, end - 512) // 2048]  # the header of the next sample shows that this one is complete
    with DataLoader(data, 3, num_workers=workers, on_error="skip") as loader:
        assert [key for batch in loader for key in batch["__key__"]] == names[0] + whole + names[2]
        ((key, error),) = loader.skipped
    assert key == 4 + len(whole) and str(error).startswith(f"{paths[1]}, byte ")


def test_of_tars_joined_by_cat_the_first_is_served(tmp_path: Path) -> None:
    one, two = (write(tmp_path, [(name, b"")]) for name in ("a.txt", "b.txt"))
    one.write_bytes(one.read_bytes() + two.read_bytes())
    found = Tar(one)
    assert len(found) == 2 and found[0]["__key__"] == "a"
    with pytest.raises(FormatError, match=r"byte 512: .* more follows. .*--concatenate"):
        found[1]


def test_a_shard_that_is_no_tar_is_one_bad_sample_beside_others(tmp_path: Path) -> None:
    good = write(tmp_path, [("a.cls", b"1")])
    (tmp_path / "x.tar").write_bytes(b"<Error>AccessDenied</Error>" * 40)
    found = Tar([good, tmp_path / "x.tar"])
    assert len(found) == 2 and found[0]["cls"] == 1
    with pytest.raises(FormatError, match=r"x.tar, byte 0: this is not a tar file.*No sample is before it"):
        found[1]


def test_a_disk_that_fails_while_an_index_is_made_is_not_kept_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, [("a.cls", b"1"), ("b.cls", b"2")])
    read = File.read

    def fail(file: File, start: int, length: int) -> bytes:
        if start == 1024 and length == 512:
            raise FormatError(f"{file.path}, byte {start:,}: {length} bytes cannot be read: Input/output error.")
        return read(file, start, length)

    with monkeypatch.context() as patched:
        patched.setattr(File, "read", fail)
        with pytest.raises(FormatError, match="Input/output error"):
            Tar(path)
    assert len(Tar(path)) == 2


def test_a_file_that_is_no_tar_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"text " * 300)
    with pytest.raises(FormatError, match=r"a.tar, byte 0: this is not a tar file"):
        Tar(tmp_path / "a.tar")
    (tmp_path / "b.tar").write_bytes(gzip.compress(write(tmp_path, [("a.txt", b"")]).read_bytes()))
    with pytest.raises(FormatError, match=r"b.tar, byte 0: the file is compressed by gzip"):
        Tar(tmp_path / "b.tar")


def test_a_tar_that_changed_after_its_index_was_made_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, [("a.txt", b"one"), ("b.txt", b"two")])
    time = path.stat().st_mtime_ns
    Tar(path)
    content = path.read_bytes().replace(b"b.txt", b"a.txt")
    path.write_bytes(content)
    os.utime(path, ns=(time, time))  # as far as size and time tell, it is the same file
    with pytest.raises(FormatError, match=r"byte 1,024: a member should begin here, but the checksum"):
        Tar(path)[1]


def test_a_member_of_another_sample_is_noticed(tmp_path: Path) -> None:
    path, other = (write(tmp_path, [("a.txt", b"one"), (name, b"1")]) for name in ("a.cls", "b.cls"))
    time = path.stat().st_mtime_ns
    found = Tar(path)
    path.write_bytes(other.read_bytes())
    os.utime(path, ns=(time, time))
    with pytest.raises(FormatError, match=r"byte 1,024: member 'b.cls' is not part of sample 'a'"):
        found[0]


def test_a_pickle_has_no_index(tmp_path: Path) -> None:
    found = Tar(write(tmp_path, [(f"{number}.cls", b"1") for number in range(3000)]))
    sent = pickle.dumps(found)
    assert len(sent) < 1500
    assert pickle.loads(sent)[2999] == {"__key__": "2999", "cls": 1}


def test_random_numbers_of_a_decoder_belong_to_the_sample(tmp_path: Path) -> None:
    path = write(tmp_path, [(f"{number}.cls", b"0") for number in range(20)])
    found = Tar(path, decode={"cls": lambda data: int(penstock.rng().integers(1 << 30))})

    def drawn(batch_size: int, **settings: Any) -> list[int]:
        with DataLoader(found, batch_size=batch_size, shuffle=True, seed=3, **settings) as loader:
            return [number for batch in loader for number in batch["cls"].tolist()]

    assert drawn(4) == drawn(7) == drawn(4, num_workers=2, backend="thread")
    assert len(set(drawn(4))) == 20


def test_inspection_names_fields_and_shards(tmp_path: Path) -> None:
    array = saved(np.save, np.zeros((2, 3)))
    paths = [write(tmp_path, [(f"{name}.txt", b"four"), (f"{name}.npy", array)]) for name in "ab"]
    found = Tar(paths).inspect(1)
    assert (found.format, found.files, found.samples, found.blocks) == ("Tar", 2, 2, 2)
    assert found.fields[1:] == (FieldInfo("txt", "str", (4,)), FieldInfo("npy", "float64", (2, 3)))


SHORT = [("a.txt", b"one"), ("a.cls", b"1"), ("b.txt", b"two" * 200), ("c.txt", b"")]
LONG = [("a.txt", b"one"), ("a.cls", b"1"), ("b" * 120 + ".txt", b"two" * 200), ("c.txt", b"")]


def shapes(samples: list[dict[str, Any]]) -> list[Any]:
    """Of each sample the key, the fields and their lengths."""
    return [(sample["__key__"], [(name, len(value)) for name, value in sample.items()]) for sample in samples]


@law
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), kind=st.sampled_from(FORMATS))
def test_a_wrong_byte_is_noticed_or_inside_the_content_of_a_member(
    tmp_path: Path, place: float, flip: int, kind: int
) -> None:
    members = LONG if kind != tarfile.USTAR_FORMAT else SHORT
    path = write(tmp_path, members, kind)
    content = bytearray(path.read_bytes()[:6144])
    content[int(place * len(content))] ^= flip
    path.write_bytes(content)
    found = reads(path)
    if found is None:
        return
    # Tar has checksums of headers only. A long name is not in a header: there a wrong byte may give its member
    # another name, or none that belongs to a sample.
    if kind == tarfile.USTAR_FORMAT:
        assert shapes(found) == shapes(grouped(members))
    else:
        first, _, last = shapes(grouped(members))
        assert shapes(found)[0] == first and shapes(found)[-1] == last and len(found) in (2, 3)


@law
@given(place=st.floats(0, 1, exclude_max=True), kind=st.sampled_from(FORMATS[1:]))
def test_a_tar_that_is_cut_short_is_noticed(tmp_path: Path, place: float, kind: int) -> None:
    path = write(tmp_path, LONG, kind)
    content = path.read_bytes()
    path.write_bytes(content[: int(place * len(content))])
    found = reads(path)
    assert found is None or found == grouped(LONG)  # only zeros at the end are gone


def reads(path: Path) -> list[dict[str, Any]] | None:
    """The samples; None if there is an error, which must name the place."""
    try:
        return list(Tar(path, decode=False))
    except FormatError as error:
        message = str(error)
    assert f"{path}, byte " in message
    return None


@pytest.mark.parametrize("end", sorted(PICTURES))
def test_all_pictures_of_an_image_folder_are_decoded(tmp_path: Path, end: str) -> None:
    stream = io.BytesIO()
    kind = Image.registered_extensions().get(end)
    if kind is None or kind not in Image.SAVE:
        pytest.skip(f"Pillow cannot write {end} here")
    Image.new("1" if end == ".pbm" else "L" if end == ".pgm" else "RGB", (4, 3)).save(stream, kind)
    (path,) = [write(tmp_path, [(f"a{end}", stream.getvalue())])]
    assert Tar(path)[0][end.removeprefix(".")].shape == (3, 4, 3)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / f"a{end}").write_bytes(stream.getvalue())
    assert len(ImageFolder(tmp_path / "folder", labels=False)) == 1
