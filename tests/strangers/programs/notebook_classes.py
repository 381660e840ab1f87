# needs: torch
# seconds: 120
# launch: notebook
import numpy as np

import penstock

# %%
scale = 3


class Data:
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return np.array([i * scale])


# %%
loader = penstock.DataLoader(Data(), batch_size=5, num_workers=2)
print([batch.sum() for batch in loader])
loader
# %%
scale = 5  # cells are edited and run again
loader = penstock.DataLoader(Data(), batch_size=5, num_workers=2)
total = sum(int(batch.sum()) for batch in loader)
assert total == 5 * 190, total
loader.stats()
# %%
import torch

from penstock.torch import DataLoader

for batch in DataLoader(Data(), batch_size=5, num_workers=2, shuffle=True):
    assert isinstance(batch, torch.Tensor)
loader.close()
