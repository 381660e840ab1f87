# needs: torch sklearn joblib
# seconds: 120
"""Cross-validation: two loaders for each fold, never closed, and then loaders in the processes of joblib."""

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from torch.utils.data import Subset, TensorDataset

import penstock

features = torch.randn(600, 8, generator=torch.Generator().manual_seed(0))
data = TensorDataset(features, (features.sum(1) > 0).long())


def first_mean(seed):
    loader = penstock.DataLoader(np.arange(100.0), 50, shuffle=True, seed=seed, num_workers=1)
    return float(np.mean(next(iter(loader))))


if __name__ == "__main__":
    scores = []
    for train, test in KFold(3).split(features):
        x, y = zip(*penstock.torch.DataLoader(Subset(data, train), 64, shuffle=True, num_workers=2))
        model = LogisticRegression().fit(torch.cat(x).numpy(), torch.cat(y).numpy())
        test_loader = penstock.DataLoader(Subset(data, test), 100, num_workers=2)
        scores += [model.score(np.asarray(x), np.asarray(y)) for x, y in test_loader]
    assert len(scores) == 6 and np.mean(scores) > 0.9
    means = Parallel(n_jobs=2)(delayed(first_mean)(seed) for seed in range(4))
    assert means == [first_mean(seed) for seed in range(4)]
    print("ok")
