# needs: torch lightning
# seconds: 180
"""Lightning trains for two epochs with a loader of penstock.torch, with workers and a seed."""

import logging
import warnings

import torch

import lightning  # noqa: E402

for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")

from penstock.torch import DataLoader  # noqa: E402


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen = []

    def training_step(self, batch):
        x, i = batch
        self.seen += i.tolist()
        return self.layer(x).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def main():
    data = torch.utils.data.TensorDataset(torch.rand(64, 4), torch.arange(64))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2, seed=1, persistent_workers=True)
    model = Model()
    trainer = lightning.Trainer(
        max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False
    )
    trainer.fit(model, loader)
    assert sorted(model.seen) == sorted([*range(64)] * 2)
    assert model.seen[:64] != model.seen[64:]
    print("ok")


if __name__ == "__main__":
    main()
