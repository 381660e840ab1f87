"""`penstock pack`: a folder of images becomes a .rec file."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock import cli
from penstock.image import ImageFolder, Transform
from penstock.records import Record, RecordFile

# The command, which waits for a signal when it opens z.jpg, and says so.
WAITING = """
import signal, sys
from penstock.cli import main
from penstock._files.local import File

read = File.read
def waits(file, start, length):
    if file.path.endswith("z.jpg"):
        print("waits", flush=True)
        signal.pause()
    return read(file, start, length)
File.read = waits
sys.exit(main())
"""

COMMAND = [sys.executable, "-c", "import sys; from penstock.cli import main; sys.exit(main())"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten pictures of two classes, JPEG and PNG, 40 x 30 and 10 x 20."""
    rng = np.random.default_rng(0)
    for number in range(10):
        path = tmp_path / "pictures" / ("cat", "dog")[number % 2] / f"{number}.{('jpg', 'png')[number % 3 == 0]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (40, 30) if number < 8 else (10, 20)
        Image.fromarray(rng.integers(0, 255, (*size, 3), np.uint8)).save(path)
    return tmp_path / "pictures"


def pack(folder: Path, *options: str, workers: int = 0) -> tuple[int, Path]:
    out = folder.parent / "out.rec"
    return cli.main(["pack", str(folder), str(out), "--workers", str(workers), *options]), out


def stored(folder: Path) -> list[Record]:
    images = ImageFolder(folder)
    sources = [images.read(key) for key in range(len(images))]
    return [Record(key, float(label), data) for key, (data, label, _) in enumerate(sources)]


@pytest.mark.parametrize("workers", [0, 2])
def test_files_are_packed_as_they_are(folder: Path, workers: int, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = pack(folder, workers=workers)
    assert code == 0
    assert list(RecordFile(out)) == stored(folder)
    said = capsys.readouterr()
    size = f"{out.stat().st_size / 1e6:.1f} MB"
    assert said.out.startswith(f"10 images of 2 classes, {size}, in ")
    assert said.out.splitlines()[1:] == [f"  {out}", f"  {out.with_suffix('.idx')}"]
    assert said.err == ""
    assert sorted(os.listdir(folder.parent)) == ["out.idx", "out.rec", "pictures"]


def test_a_packed_folder_gives_the_images_of_the_folder(folder: Path) -> None:
    _, out = pack(folder)
    transform = Transform(crop=8, train=False)
    for (packed, label), (image, expected) in zip(
        RecordFile(out, transform=transform), ImageFolder(folder, transform), strict=True
    ):
        assert np.array_equal(packed, image)
        assert label == expected


def test_images_are_shrunk_to_the_shorter_side_and_never_enlarged(folder: Path) -> None:
    code, out = pack(folder, "--resize", "15", "--quality", "80")
    assert code == 0
    originals = stored(folder)
    for record in RecordFile(out):
        with Image.open(io.BytesIO(originals[record.id].data)) as before:
            width, height = before.size
        with Image.open(io.BytesIO(record.data)) as after:
            if min(width, height) <= 15:
                assert record.data == originals[record.id].data
            else:
                assert (after.format, after.size) == ("JPEG", (15, 20))


def test_shuffle_writes_in_an_order_of_its_seed_and_keeps_the_ids(folder: Path) -> None:
    _, out = pack(folder, "--shuffle", "5")
    first = list(RecordFile(out))
    assert first != stored(folder)
    assert sorted(first) == stored(folder)
    pack(folder, "--shuffle", "5", "--force", workers=2)
    assert list(RecordFile(out)) == first
    pack(folder, "--shuffle", "6", "--force")
    assert list(RecordFile(out)) != first


def test_a_list_names_images_and_labels(folder: Path) -> None:
    (folder / "list.txt").write_text("dog/1.jpg 2.5\ncat/2.jpg 7\n")
    code, out = pack(folder, "--list", str(folder / "list.txt"))
    assert code == 0
    assert [record.label for record in RecordFile(out)] == [2.5, 7]


def test_a_list_of_mxnet_may_have_several_labels(folder: Path) -> None:
    (folder / "list.lst").write_text("5\t1\t2.5\tdog/1.jpg\n6\t3\t4\tcat/2.jpg\n")
    code, out = pack(folder, "--list", str(folder / "list.lst"))
    assert code == 0
    assert [record.label.tolist() for record in RecordFile(out)] == [[1, 2.5], [3, 4]]


def test_a_label_without_room_names_its_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "list.txt").write_text("dog/1.jpg 2\ncat/2.jpg 16777217\n")
    assert pack(folder, "--list", str(folder / "list.txt"))[0] == 1
    said = f"penstock pack: {folder}/cat/2.jpg: labels are stored as float32, which cannot represent 16777217"
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_missing_file_of_a_list_is_left_out_wherever_it_is(
    folder: Path, missing: int, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["dog/1.jpg 1"]
    lines.insert(missing, "dog/gone.jpg 0")
    (folder / "list.txt").write_text("\n".join(lines))
    assert pack(folder, "--list", str(folder / "list.txt"))[0] == 1
    assert "dog/gone.jpg" in capsys.readouterr().err
    code, out = pack(folder, "--list", str(folder / "list.txt"), "--skip-bad")
    assert code == 0
    assert [record.label for record in RecordFile(out)] == [1]


def test_a_list_of_another_folder_is_an_error_also_where_bad_files_are_skipped(folder: Path) -> None:
    (folder / "list.txt").write_text("gone.jpg 1\nlost.jpg 1\n")
    assert pack(folder, "--list", str(folder / "list.txt"), "--skip-bad")[0] == 1


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"a.jpg": ""},
            "has no folders, one for each class. For a list of paths and labels pass --list.",
        ),
        ({"cat/a.txt": ""}, "or name the images in a list and pass --list."),
        ({"list.txt": "a.jpg"}, "with a space between, but it is 'a.jpg'."),
    ],
)
def test_advice_is_for_the_command_line(
    files: dict[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    listing = ["--list", str(tmp_path / "list.txt")] if "list.txt" in files else []
    assert cli.main(["pack", str(tmp_path), str(tmp_path / "out.rec"), *listing]) == 1
    errors = capsys.readouterr().err
    assert errors.strip().endswith(said)
    assert "ImageFolder" not in errors


def spoil(folder: Path) -> list[Path]:
    bad = [folder / "cat" / "half.jpg", folder / "dog" / "text.png"]
    bad[0].write_bytes((folder / "cat" / "2.jpg").read_bytes()[:1200])
    bad[1].write_text("not an image")
    return bad


@pytest.mark.parametrize("resize", [(), ("--resize", "15")])
def test_a_bad_file_stops_it_and_is_named(
    folder: Path, resize: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    bad, _ = spoil(folder)
    code, _ = pack(folder, *resize)
    assert code == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"penstock pack: {bad}: its 1200 bytes cannot be decoded")
    assert "--skip-bad" in said.err
    assert os.listdir(folder.parent) == ["pictures"]


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_files_are_left_out_and_listed_if_asked_for(
    folder: Path, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    good = stored(folder)
    bad = spoil(folder)
    code, out = pack(folder, "--skip-bad", workers=workers)
    assert code == 0
    said = capsys.readouterr()
    assert said.out.startswith("10 images of 2 classes")
    assert said.err.startswith("2 files were left out:")
    assert all(str(path) in said.err for path in bad)
    assert [record.data for record in RecordFile(out)] == [record.data for record in good]


def test_a_folder_without_a_single_image_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in folder.rglob("*.*"):
        path.write_text("nothing")
    code, _ = pack(folder, "--skip-bad")
    assert code == 1
    assert "none of the 10 files is an image. The first:" in capsys.readouterr().err
    assert os.listdir(folder.parent) == ["pictures"]


def test_a_file_is_replaced_only_by_force(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = pack(folder)
    before = out.read_bytes()
    code, _ = pack(folder, "--shuffle", "1")
    assert code == 1
    assert f"{out} and {out.with_suffix('.idx')} would be replaced. Pass --force" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert pack(folder, "--shuffle", "1", "--force")[0] == 0
    assert out.read_bytes() != before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pack", "none", "out.rec"], "there is no folder or list 'none'"),
        (["pack", ".", "out.lmdb"], "must end in .rec, but it is out.lmdb"),
        (["pack", ".", "none/out.rec"], "there is no folder none to write to"),
        (["pack", ".", "folder.rec", "--force"], "folder.rec is a folder"),
        (["pack", ".", "index.rec", "--force"], "index.idx is a folder"),
        (["pack", ".", "out.rec", "--quality", "50"], "Without --resize files are packed unchanged"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("folder.rec", "index.idx"):
        (tmp_path / name).mkdir()
    assert cli.main(arguments) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--resize", "0"], ["--quality", "101"], ["--workers", "-1"], ["--resize", "x"]])
def test_numbers_that_mean_nothing_are_refused(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["pack", "folder", "out.rec", *option])
    assert exit_.value.code == 2
    assert option[0] in capsys.readouterr().err


def begun(folder: Path, out: Path) -> subprocess.Popen[str]:
    """The command, which waits at its last image."""
    (folder / "dog" / "z.jpg").write_bytes(b"")
    command = [sys.executable, "-c", WAITING, "pack", str(folder), str(out), "--workers", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert "waits\n" in iter(process.stdout.readline, "")
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return process


def test_a_kill_leaves_no_half_file_under_the_final_name(folder: Path) -> None:
    """The command waits at the last image, with the rest written."""
    out = folder.parent / "out.rec"
    process = begun(folder, out)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    assert not out.exists()
    assert not out.with_suffix(".idx").exists()


def test_ctrl_c_says_that_nothing_was_written_and_leaves_nothing(folder: Path) -> None:
    process = begun(folder, folder.parent / "out.rec")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (
        128 + signal.SIGINT,
        "penstock pack: stopped. Nothing was written.\n",
    )
    assert os.listdir(folder.parent) == ["pictures"]


def test_help_imports_no_image_library() -> None:
    code = (
        "import sys; from penstock.cli import main\n"
        "try: main(['pack', '--help'])\n"
        "except SystemExit: print([name for name in ('cv2', 'PIL', 'rich') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.endswith("[]\n"), ran.stderr


@pytest.mark.parametrize(
    ("missing", "code", "said"),
    [
        (
            "simplejpeg",
            "from penstock.cli import main; sys.exit(main(['pack', '.', 'out.rec']))",
            'penstock pack: penstock.image needs simplejpeg: pip install ".[image]" in a clone of penstock\n',
        ),
        (
            "torch",
            "import penstock.torch",
            'ImportError: penstock.torch needs torch: pip install ".[torch]" in a clone of penstock\n',
        ),
    ],
)
def test_a_library_that_is_not_there_is_named_with_what_to_install(missing: str, code: str, said: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; {code}"  # as if it were not installed
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.endswith(said)
