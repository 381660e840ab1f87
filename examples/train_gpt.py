"""Trains a tiny GPT on a mixture of three sources, is killed, and continues on other numbers of ranks.

    python examples/train_gpt.py

makes three small sources (Parquet, Megatron's files and JSON lines), mixes and packs them, and trains four times with
torchrun: on 2 ranks without a disturbance; on 2 ranks until a rank is killed; and from the last checkpoint of that
run on 1 and on 3 ranks. The weights of the mixture change in the middle. Each run prints one line for each step: a
hash of the batch of all ranks, the number of documents in it, and the loss. The lines of the continued runs are those
of the undisturbed run.

It needs `pip install "penstock[parquet]" torch` and takes about a minute on 2 cores. Only `train` and what it
calls is what a program of yours would have.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import penstock

ROWS, LENGTH, STEPS, SAVE_EVERY = 6, 256, 40, 5  # the batch of all ranks has 6 rows of 256 tokens
NEW_WEIGHTS_AT, DIES_AT = 12, 23


# The data: text is bytes, so a token is a number from 0 to 255. 0 ends a document.


def make_sources(folder: Path) -> None:
    """Writes about 2,700 documents in three formats, with lengths from 0 to several rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    words = [bytes(rng.integers(97, 123, n)).decode() for n in rng.integers(2, 9, 500)]

    def text() -> str:
        return " ".join(rng.choice(words, int(rng.lognormal(2.0, 1.2))))

    tokens = [np.frombuffer(text().encode(), np.uint8) for _ in range(1500)]
    pq.write_table(pa.table({"tokens": pa.array(tokens, pa.list_(pa.uint8()))}), folder / "web.parquet")

    tokens = [np.frombuffer(text().encode(), np.uint8) for _ in range(800)]
    lengths = np.array([len(one) for one in tokens], "<i4")
    (folder / "code.bin").write_bytes(b"".join(one.tobytes() for one in tokens))
    starts = np.concatenate([[0], lengths[:-1].astype("<i8").cumsum()]).astype("<i8")
    head = b"MMIDIDX\0\0" + np.int64(1).tobytes() + b"\x01" + np.array([800, 801], "<i8").tobytes()
    (folder / "code.idx").write_bytes(head + lengths.tobytes() + starts.tobytes() + np.arange(801).tobytes())

    (folder / "math.jsonl").write_text("".join(json.dumps({"text": text()}) + "\n" for _ in range(400)))


def encode(line: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": np.frombuffer(line["text"].encode(), np.uint8)}


def named(tokens: Any) -> dict[str, Any]:
    return {"tokens": tokens}


def tokens_in(document: dict[str, Any]) -> int:
    return len(document["tokens"])


def make_loader(folder: Path, rank: int, world: int) -> penstock.DataLoader[Any]:
    sources = {
        "web": penstock.formats.Parquet(folder / "web.parquet").with_lengths(tokens_in),
        "code": penstock.formats.Megatron(folder / "code").map(named, keeps_lengths=True),
        "math": penstock.formats.JsonLines(folder / "math.jsonl").map(encode).with_lengths(tokens_in),
    }
    mixture = penstock.mix(sources, weights={"web": 0.6, "code": 0.3, "math": 0.1})
    rows = penstock.pack(mixture, length=LENGTH, eos=0, window=128)
    return penstock.DataLoader(
        rows, batch_size=ROWS // world, shard=(rank, world), seed=7, num_workers=1, last_batch="drop"
    )


# The model.


class TinyGPT(torch.nn.Module):
    """One layer of attention and one of perceptrons. Attention does not look beyond a document."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.token = torch.nn.Embedding(256, width)
        self.place = torch.nn.Embedding(LENGTH, width)
        self.to_qkv = torch.nn.Linear(width, 3 * width)
        self.mix = torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )
        self.head = torch.nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.place(positions)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.to_qkv(x).chunk(3, -1))
        same = segments[:, None, :, None] == segments[:, None, None, :]
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=same.tril())
        x = x + self.mix(attended.transpose(1, 2).flatten(2))
        logits: torch.Tensor = self.head(x + self.mlp(x))
        return logits


def gradients(model: TinyGPT, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss of each row of this rank's batch, and its gradient. Row by row: see `train`."""
    losses, found = [], []
    for tokens, positions, segments in zip(
        *(batch[name] for name in ("tokens", "positions", "segments")), strict=True
    ):
        tokens, segments = torch.from_numpy(tokens).long(), torch.from_numpy(segments).long()
        logits = model(tokens[None], torch.from_numpy(positions).long()[None] % LENGTH, segments[None])[0]
        counts = (segments[1:] == segments[:-1]) & (segments[1:] > 0)  # a document does not predict the next one
        loss = F.cross_entropy(logits[:-1][counts], tokens[1:][counts], reduction="sum") / counts.sum().clamp(1)
        parts = torch.autograd.grad(loss, list(model.parameters()))
        losses.append(loss.detach())
        found.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(losses), torch.stack(found)


def of_all_ranks(mine: torch.Tensor, world: int) -> torch.Tensor:
    """Returns the rows of all ranks, in the order of the ranks: the order of the batch of all ranks."""
    parts = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(parts, mine)
    return torch.cat(parts)


def train(folder: Path, checkpoint: Path, table: Path, resume: bool, dies: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    loader = make_loader(folder, rank, world)
    torch.manual_seed(0)
    model = TinyGPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    done = 0
    if resume:
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])  # of any rank
        done = saved["step"]
    with loader, table.open("a") as lines:
        for step, batch in enumerate(loader, done):
            if step == STEPS:
                break
            if dies and step == DIES_AT and rank == world - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            # The gradients of single rows are added in the order of the batch of all ranks. So the sum is the same to
            # the last bit on any number of ranks. A program that needs no such proof calls backward() on its batch.
            losses, grads = (of_all_ranks(mine, world) for mine in gradients(model, batch))
            start = 0
            for parameter in model.parameters():
                end = start + parameter.numel()
                parameter.grad = sum(grads[:, start:end]).div(ROWS).view_as(parameter)  # type: ignore[union-attr]
                start = end
            optimizer.step()
            if step == NEW_WEIGHTS_AT:  # from the next window of documents on; the state remembers it
                loader.update(weights={"web": 0.3, "code": 0.3, "math": 0.4})
            tokens = of_all_ranks(torch.from_numpy(np.array(batch["tokens"])), world)
            segments = of_all_ranks(torch.from_numpy(np.array(batch["segments"])), world)
            if rank == 0:
                seen = hashlib.sha256(tokens.numpy().tobytes() + segments.numpy().tobytes()).hexdigest()[:16]
                documents = int(segments.amax(1).sum())
                lines.write(f"{step:4d}  {seen}  {documents:4d}  {losses.mean().item():.9f}\n")
                lines.flush()
                if (step + 1) % SAVE_EVERY == 0:
                    made = {"model": model.state_dict(), "loader": loader.state_dict(), "step": step + 1}
                    torch.save(made, checkpoint.with_suffix(".new"))
                    checkpoint.with_suffix(".new").rename(checkpoint)
    dist.destroy_process_group()


# The proof: the runs, and the comparison of their tables.


def torchrun(world: int, *arguments: str) -> int:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, __file__, *arguments], env=environment, stderr=subprocess.PIPE).returncode


def lines_of(table: Path) -> dict[int, str]:
    """Returns the lines of a table by step. A step that was done again after a checkpoint has its last line."""
    return {int(line.split()[0]): line for line in table.read_text().splitlines()}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_sources(folder)

        def run(what: str, world: int, *more: str, checkpoint: str) -> dict[int, str]:
            table = folder / f"{what}.txt"
            code = torchrun(
                world, "--folder", name, "--checkpoint", str(folder / checkpoint), "--table", str(table), *more
            )
            print(f"{what}: {world} ranks, exit code {code}, steps {min(lines_of(table))} to {max(lines_of(table))}")
            return lines_of(table)

        undisturbed = run("undisturbed", 2, checkpoint="undisturbed.pt")
        killed = run("killed", 2, "--dies", checkpoint="killed.pt")
        runs = {"killed": killed}
        for world in (1, 3):
            (folder / f"killed-{world}.pt").write_bytes((folder / "killed.pt").read_bytes())
            runs[f"on {world}"] = run(f"on {world}", world, "--resume", checkpoint=f"killed-{world}.pt")

        print("\nstep  batch of all ranks  docs  loss         the same in the runs")
        for step, line in undisturbed.items():
            same = [what for what, lines in runs.items() if lines.get(step) == line]
            print(f"{line}  {', '.join(same)}")
        differing = [what for what, lines in runs.items() if any(undisturbed[step] != lines[step] for step in lines)]
        missing = [what for what in ("on 1", "on 3") if max(runs[what]) != STEPS - 1]
        if differing or missing or len(undisturbed) != STEPS:
            raise SystemExit(f"These runs differ from the undisturbed one: {differing + missing}")
        print(f"\nAll {STEPS} steps are the same in every run that did them.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--dies", action="store_true")
    given = parser.parse_args()
    if given.folder is None:
        main()
    else:
        train(given.folder, given.checkpoint, given.table, given.resume, given.dies)
