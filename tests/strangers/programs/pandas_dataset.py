# needs: pandas torch
"""Rows of a data frame, some text and some numbers, with penstock.torch."""

import pandas as pd
import torch

from penstock.torch import DataLoader

frame = pd.DataFrame({"text": [f"row {i}" for i in range(50)], "value": range(50), "day": pd.date_range("2026-01-01", periods=50)})


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(frame)

    def __getitem__(self, i):
        row = frame.iloc[i]
        return {"text": row["text"], "value": torch.tensor(float(row["value"])), "weekday": row["day"].day_of_week}


assert frame.groupby(frame.day.dt.month).value.sum().sum() == sum(range(50))
texts = []
for batch in DataLoader(Rows(), batch_size=8, num_workers=2, shuffle=False):
    assert batch["value"].dtype == torch.float32
    texts += batch["text"]
assert texts == [f"row {i}" for i in range(50)]
print("ok")
