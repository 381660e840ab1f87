"""Builds the sdist and the wheel, checks them, and uses the wheel as somebody does who has only that: `make dist`.

    python -m tests.wheel                  with every extra
    python -m tests.wheel image parquet    with these extras
    python -m tests.wheel --build-only

For each extra, the wheel is installed into an empty environment in build/dist, and a program of SMOKE runs there, in
an empty folder, where this repository cannot be imported. Without extras, `penstock demo` runs, too. The files are in
dist/.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS, OUT = ROOT / "build/dist", ROOT / "dist"

# What every environment runs: workers, a state, and a page.
PLAIN = """
import json, sys
import numpy as np
import penstock

assert "site-packages" in penstock.__file__, penstock.__file__
data = penstock.ArrayDataset(x=np.arange(100), y=np.arange(100.0))
settings = dict(batch_size=8, shuffle=True, seed=3)
expected = [batch["x"].tolist() for batch in penstock.DataLoader(data, **settings)]
with penstock.DataLoader(data, num_workers=2, **settings) as loader:
    first = [next(batches)["x"].tolist() for batches in [iter(loader)] for _ in range(5)]
    state = json.dumps(loader.state_dict())
with penstock.DataLoader(data, num_workers=1, backend="thread", **settings) as loader:
    loader.load_state_dict(json.loads(state))
    assert first + [batch["x"].tolist() for batch in loader] == expected
    loader.report("report.html")
"""

# One program for each extra, which uses what the extra is for.
SMOKE = {
    "torch": """
import torch
from penstock.torch import DataLoader

loader = DataLoader(torch.utils.data.TensorDataset(torch.arange(10)), batch_size=4, num_workers=2)
assert [batch.tolist() for [batch] in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
""",
    "jax": """
import jax
import penstock.jax

with penstock.jax.DataLoader(penstock.ArrayDataset(x=np.arange(8)), batch_size=4) as loader:
    [first, _] = loader
assert isinstance(first["x"], jax.Array) and first["x"].tolist() == [0, 1, 2, 3]
""",
    "ray": """
import ray

ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
with penstock.DataLoader(range(10), 4, num_workers=1, backend="ray") as loader:
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
ray.shutdown()
""",
    "image": """
import os
import subprocess
from PIL import Image

for name in ("cat", "dog"):
    os.makedirs(f"images/{name}")
    Image.fromarray(np.zeros((40, 50, 3), np.uint8)).save(f"images/{name}/1.jpg")
data = penstock.image.ImageFolder("images", transform=penstock.image.Transform(resize=32, crop=24))
[batch] = penstock.DataLoader(data, batch_size=2)
assert batch[0].shape[0] == 2 and batch[1].tolist() == [0, 1], batch
subprocess.run([sys.executable, "-m", "penstock", "pack", "images", "images.rec"], check=True)
""",
    "parquet": """
import pyarrow as pa
import pyarrow.parquet

pa.parquet.write_table(pa.table({"id": range(10)}), "rows.parquet")
[batch] = penstock.DataLoader(penstock.open("rows.parquet"), batch_size=10)
assert batch["id"].tolist() == [*range(10)]
""",
    "huggingface": """
import datasets

rows = penstock.formats.HuggingFace(datasets.Dataset.from_dict({"id": [*range(10)]}))
[batch] = penstock.DataLoader(rows, batch_size=10)
assert batch["id"].tolist() == [*range(10)]
""",
    "remote": """
import pathlib
from penstock.testing._serving import serving

pathlib.Path("lines.jsonl").write_text('{"id": 1}\\n{"id": 2}\\n')
with serving(pathlib.Path(".")) as url:
    data = penstock.formats.JsonLines(f"{url}/lines.jsonl", cache="cache")
    assert data[1] == {"id": 2}
""",
    "lmdb": """
image = np.zeros((3, 8, 8), np.uint8)
penstock.records.write_caffe_lmdb("train_lmdb", [(image, 1), (image, 2)])
assert [label for _, label in penstock.records.CaffeLMDB("train_lmdb")] == [1, 2]
""",
}
SMOKE["all"] = "".join(SMOKE[name] for name in ("torch", "image", "parquet", "huggingface", "remote", "lmdb", "ray"))


def main() -> int:
    given = argparse.ArgumentParser("python -m tests.wheel", description=__doc__.split("\n")[0])
    given.add_argument("extras", nargs="*", help="extras to try (default: none, and each alone)")
    given.add_argument("--build-only", action="store_true", help="build and check, and install nothing")
    options = given.parse_args()
    wheel = _built()
    if options.build_only:
        return 0
    extras = ["", *_extras(wheel)]
    if unknown := {*extras, *options.extras} - {"", *SMOKE} or {*options.extras} - {*extras}:
        raise SystemExit(f"{', '.join(sorted(unknown))}: no such extra, or an extra without a program in SMOKE")
    failed = [extra for extra in options.extras or extras if not _works(wheel, extra)]
    print(f"dist  failed: {', '.join(map(repr, failed))}" if failed else f"dist  {wheel.name}: all passed")
    return bool(failed)


def _built() -> Path:
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.rmtree(ROOT / "build/lib", ignore_errors=True)  # setuptools would put older modules in the wheel
    _tool("build", "--outdir", OUT, ROOT)
    files = sorted(OUT.iterdir())
    _tool("twine", "check", "--strict", *files)
    [wheel] = OUT.glob("*.whl")
    _tool("check_wheel_contents", wheel)
    _check_modules(wheel)
    return wheel


def _check_modules(wheel: Path) -> None:
    """Every file of the package is in the wheel, and nothing else is."""
    with zipfile.ZipFile(wheel) as inside:
        packed = {name for name in inside.namelist() if ".dist-info/" not in name}
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    ours = {name.removeprefix("src/") for name in listed.split()}
    assert packed == ours, f"only in the wheel or only in src: {sorted(packed ^ ours)}"


def _extras(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as inside:
        [name] = [name for name in inside.namelist() if name.endswith(".dist-info/METADATA")]
        return re.findall(r"^Provides-Extra: (.+)$", inside.read(name).decode(), re.MULTILINE)


def _works(wheel: Path, extra: str) -> bool:
    began, name = time.monotonic(), extra or "no extra"
    folder = ENVIRONMENTS / (extra or "plain")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin/python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    if extra in ("torch", "all"):  # any other torch brings gigabytes
        subprocess.run([*pip, _torch()], check=True, stderr=subprocess.DEVNULL)
    subprocess.run([*pip, f"{wheel}[{extra}]" if extra else wheel], check=True, stderr=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory(prefix="penstock-dist-") as empty:
        Path(empty, "program.py").write_text(PLAIN + SMOKE.get(extra, ""))
        commands = [[folder / "bin/python", "-W", "error::DeprecationWarning:penstock", "program.py"]]
        commands += [[folder / "bin/penstock", "demo"]] if not extra else []
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        ran = [subprocess.run(each, cwd=empty, env=clean, capture_output=True, text=True) for each in commands]
    for each in ran:
        if each.returncode:
            print(each.stdout, each.stderr, sep="\n")
    works = not any(each.returncode for each in ran)
    print(f"dist  {name}: {'passed' if works else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
    return works


def _torch() -> str:
    import tomllib

    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return str(groups["torch"][0])


def _tool(module: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-m", module, *map(str, arguments)], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
