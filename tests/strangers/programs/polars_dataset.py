# needs: polars
"""A polars frame was queried in the main program, and each sample queries it again."""

import numpy as np
import polars as pl

import penstock

frame = pl.DataFrame({"user": np.arange(1000) % 20, "score": np.arange(1000.0)})
frame.group_by("user").agg(pl.col("score").mean())


class Users:
    def __len__(self):
        return 20

    def __getitem__(self, user):
        return frame.lazy().filter(pl.col("user") == user).select(pl.col("score").sum()).collect().item()


if __name__ == "__main__":
    got = np.concatenate(list(penstock.DataLoader(Users(), batch_size=5, num_workers=2)))
    np.testing.assert_allclose(got, [sum(range(user, 1000, 20)) for user in range(20)])
    print("ok")
