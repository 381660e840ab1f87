"""Lightning iterates the loader that it is given, rebuilds it to predict, and ends its workers by a private name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import lightning.pytorch.callbacks
import pytest
import torch
from conftest import children
from torch import Tensor

import penstock.torch
from frameworks.toys import BATCH, SAMPLES, WORKERS, Line, NoisyPoints, enabled, seeded

# Lightning's own affairs: torch has deprecated what it calls, and it would rather have more workers.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]

EPOCHS = 2
ITERATORS = EPOCHS + 1 + EPOCHS  # training, the sanity check before it, validation


class Module(lightning.LightningModule):
    """The line, which makes its own loaders when it was given a class for them."""

    def __init__(self, loader_class: Any = None, **options: Any) -> None:
        super().__init__()
        self.line = Line()
        self.losses: list[float] = []
        self.loader_class, self.options = loader_class, options

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        loss = self.line(**batch)["loss"]
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: dict[str, Tensor]) -> None:
        self.losses.append(self.line(**batch)["loss"].item())

    def predict_step(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["labels"].clone()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class SelfFed(Module):
    def train_dataloader(self) -> Any:
        return make_loader(self.loader_class, shuffle=True, **self.options)

    def val_dataloader(self) -> Any:
        return make_loader(self.loader_class, **self.options)


def make_loader(loader_class: Any, **options: Any) -> Any:
    return loader_class(NoisyPoints(), batch_size=BATCH, **options)


def trainer() -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        num_sanity_val_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def fit_given(loader_class: Any, **options: Any) -> tuple[list[Tensor], list[float]]:
    module = Module()
    training = make_loader(loader_class, shuffle=True, **options)
    trainer().fit(module, training, make_loader(loader_class, **options))
    return module.line.seen, module.losses


def fit_self_fed(loader_class: Any, **options: Any) -> tuple[list[Tensor], list[float]]:
    module = SelfFed(loader_class, **options)
    trainer().fit(module)
    return module.line.seen, module.losses


@pytest.mark.parametrize("options", WORKERS)
@pytest.mark.parametrize("fit", [fit_given, fit_self_fed])
def test_our_loader_trains_as_torchs_does(fit: Any, options: dict[str, Any]) -> None:
    expected = seeded(fit, torch.utils.data.DataLoader, **options)
    assert seeded(fit, penstock.torch.DataLoader, **options) == expected


@pytest.mark.parametrize("options", WORKERS)
@pytest.mark.parametrize("fit", [fit_given, fit_self_fed])
def test_our_loader_runs_on_penstock_without_enable(fit: Any, options: dict[str, Any]) -> None:
    assert seeded(fit, penstock.torch.DataLoader, **options).served == ITERATORS


@pytest.mark.parametrize("options", WORKERS)
def test_torchs_loader_trains_the_same_while_enabled(options: dict[str, Any]) -> None:
    expected = seeded(fit_given, torch.utils.data.DataLoader, **options)
    with enabled():
        run = seeded(fit_given, torch.utils.data.DataLoader, **options)
    assert run.served == ITERATORS
    assert run == expected


def test_workers_that_lightning_seeds_draw_what_they_draw_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """`seed_everything(workers=True)` adds a `worker_init_fn` that works back from torch.initial_seed()."""
    monkeypatch.setenv("PL_SEED_WORKERS", "1")
    expected = seeded(fit_given, torch.utils.data.DataLoader, num_workers=2)
    assert seeded(fit_given, penstock.torch.DataLoader, num_workers=2) == expected


def test_the_end_of_fit_ends_persistent_workers_of_a_loader_that_lives_on() -> None:
    """Lightning sets `_iterator` of a loader to None, and expects that its workers go with it."""
    before = set(children())
    loader = make_loader(penstock.torch.DataLoader, num_workers=2, persistent_workers=True)
    trainer().fit(Module(), loader, make_loader(penstock.torch.DataLoader))
    assert set(children()) <= before
    del loader


def predict(loader: Any) -> tuple[list[list[int]], list[list[list[int]]]]:
    """The labels of every batch, and the keys of every batch as Lightning saw them go by in the sampler."""
    predicting = trainer()
    batches = predicting.predict(Module(), loader)
    labels = [batch.flatten().int().tolist() for batch in batches]
    return labels, predicting.predict_loop.epoch_batch_indices


@pytest.mark.parametrize("options", WORKERS)
def test_predicting_goes_through_every_sample_in_order(options: dict[str, Any]) -> None:
    expected = predict(make_loader(torch.utils.data.DataLoader, **options))
    assert predict(make_loader(penstock.torch.DataLoader, **options)) == expected


def test_the_loader_that_lightning_rebuilds_to_predict_is_ours() -> None:
    predicting = trainer()
    predicting.predict(Module(), make_loader(penstock.torch.DataLoader, num_workers=2))
    assert type(predicting.predict_dataloaders) is penstock.torch.DataLoader


def test_the_loader_that_lightning_rebuilds_to_predict_keeps_its_seed() -> None:
    """Lightning copies public attributes that are named in the signature of `__init__`."""
    predicting = trainer()
    predicting.predict(Module(), make_loader(penstock.torch.DataLoader, num_workers=2, seed=3))
    assert predicting.predict_dataloaders.seed == 3


def labels_after(folder: Path, step: int, **when: Any) -> list[list[int]]:
    """The labels of each batch after the checkpoint of this step was loaded into a new module and a new loader."""

    def fit(epochs: int, checkpoint: Path | None = None) -> list[list[int]]:
        module = Module()
        saving = lightning.pytorch.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, **when)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        training = lightning.Trainer(accelerator="cpu", max_epochs=epochs, callbacks=[saving], **quiet)
        training.fit(module, make_loader(penstock.torch.DataLoader, num_workers=2), ckpt_path=checkpoint)
        return [batch[:, -1].int().tolist() for batch in module.line.seen]

    fit(1)
    return fit(2, folder / f"step={step}.ckpt")


IN_SEQUENCE = [list(range(at, min(at + BATCH, SAMPLES))) for at in range(0, SAMPLES, BATCH)]


def test_a_run_resumed_in_the_middle_of_an_epoch_goes_on_with_the_rest_of_it(tmp_path: Path) -> None:
    """With torch's loader, Lightning begins the data again and stops the epoch short."""
    assert labels_after(tmp_path, 3, every_n_train_steps=3) == IN_SEQUENCE[3:] + IN_SEQUENCE


def test_a_run_resumed_at_the_end_of_an_epoch_has_all_of_the_next(tmp_path: Path) -> None:
    assert labels_after(tmp_path, 7, save_on_train_epoch_end=True) == IN_SEQUENCE


def test_loaders_that_lightning_makes_keep_all_of_our_arguments() -> None:
    """In a hook Lightning notes the arguments of the constructor; a loader that it is given has attributes only."""
    options: dict[str, Any] = {"seed": 3, "dtype": "float64", "on_error": "skip", "num_workers": "auto"}
    given, made = trainer(), trainer()
    given.predict(Module(), make_loader(penstock.torch.DataLoader, **options))

    class Predicting(Module):
        def predict_dataloader(self) -> Any:
            return make_loader(penstock.torch.DataLoader, **options)

    made.predict(Predicting())
    for loader in (given.predict_dataloaders, made.predict_dataloaders):
        assert (loader.seed, loader.dtype, loader.on_error) == (3, "float64", "skip")
        assert loader._auto == {"num_workers": "auto"}
