# needs: torch PIL
# seconds: 90
"""Shards of a crawl: one is cut off, a sample lacks its label, a key comes twice, and JSON has nulls."""

import io
import os
import subprocess
import tarfile

from PIL import Image

import penstock
import penstock.torch
from penstock.formats import Tar
from penstock.image import Transform


def picture(number):
    out = io.BytesIO()
    Image.new("RGB", (40 + number, 32), (number, 0, 0)).save(out, "JPEG")
    return out.getvalue()


def write(path, numbers):
    with tarfile.open(path, "w") as tar:
        for number in numbers:
            about = b'{"width": null}' if number % 2 else b'{"sha256": "..."}'
            members = {"jpeg" if number % 3 else "jpg": picture(number), "json": about, "cls": b"%d" % number}
            if number == 7:
                del members["cls"]
            for end, content in members.items():
                info = tarfile.TarInfo(f"{5 if number == 9 else number:06}.{end}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def main():
    os.mkdir("shards")
    for shard in range(4):
        write(f"shards/{shard:05}.tar", range(10 * shard, 10 * shard + 10))
    size = os.path.getsize("shards/00002.tar")
    os.truncate("shards/00002.tar", size // 2)

    data = Tar("shards/{00000..00003}.tar", fields=("jpg", "cls"), decode={"jpg": Transform(crop=24)})
    for loader_class in (penstock.DataLoader, penstock.torch.DataLoader):
        with_workers = {"num_workers": 2, "on_error": "skip", "seed": 0, "shuffle": True}
        loader = loader_class(data, batch_size=4, **with_workers)
        seen = sorted(int(label) for batch in loader for label in batch["cls"])
        whole = [label for label in seen if 20 <= label < 30]
        assert [label for label in seen if label < 20] == [label for label in range(20) if label not in (7, 9)], seen
        assert whole == list(range(20, 20 + len(whole))) and 2 < len(whole) < 8, seen
        assert [label for label in seen if label >= 30] == list(range(30, 40)), seen
        said = [str(error) for _, error in loader.skipped]
        assert len(said) == 3 and any("00002.tar, byte " in text for text in said), said
        del loader

    # All members, for a first look. The JSON of a crawl cannot be collated, so it is left as it is.
    assert Tar("shards/00003.tar")[1]["jpeg"].shape == (32, 71, 3)
    assert Tar("shards/00003.tar", fields=("jpg", "json"))[1]["json"] == {"width": None}
    same = Transform(resize=(24, 24), train=False)
    for loader_class in (penstock.DataLoader, penstock.torch.DataLoader):
        (batch,) = loader_class(Tar("shards/00003.tar", fields="json cls", decode={"json": None}), batch_size=10)
        assert batch["json"][1] == b'{"width": null}'
        (batch, *_) = loader_class(Tar("shards/00003.tar", decode={"jpeg": same}), batch_size=1)
        assert batch["json"] == [b'{"sha256": "..."}'] and batch["jpg"].shape == (1, 3, 24, 24)

    done = subprocess.run(["penstock", "index", "shards"], capture_output=True, text=True, check=True)
    assert "4 tars with" in done.stdout and "00002.tar, byte " in done.stdout, done
    print(done.stdout)


if __name__ == "__main__":
    main()
