"""What docs/moving-in.md says of other trainers, and resuming from their checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.map import SequenceWrapper

pytestmark = pytest.mark.compat

STEPS, SAVED_AT = 12, 3


def new_loader() -> DataLoader2[torch.Tensor]:
    points = SequenceWrapper(torch.linspace(-1, 1, 64).unsqueeze(1)).shuffle()
    graph = points.sharding_filter().batch(8).collate()
    loader = DataLoader2(graph, reading_service=MultiProcessingReadingService(num_workers=2))
    loader.seed(1)
    return loader


@pytest.mark.filterwarnings("ignore")
def test_lightning_keeps_the_loaders_state_and_goes_on_in_the_middle_of_an_epoch(tmp_path):
    reason = "lightning is not among what the tests install; pip install lightning to run this"
    lightning = pytest.importorskip("lightning", reason=reason)
    seen: list[list[float]] = []

    class Line(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch):
            seen.append(batch.flatten().tolist())
            return torch.nn.functional.mse_loss(self.layer(batch), 2 * batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(folder: Path, checkpoint: Path | None = None) -> list[list[float]]:
        seen.clear()
        saving = lightning.pytorch.callbacks.ModelCheckpoint(
            folder, filename="{step}", every_n_train_steps=SAVED_AT, save_top_k=-1
        )
        trainer = lightning.Trainer(
            max_steps=STEPS,
            accelerator="cpu",
            logger=False,
            callbacks=[saving],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loader = new_loader()
        trainer.fit(Line(), loader, ckpt_path=checkpoint)
        loader.shutdown()
        return list(seen)

    whole = fit(tmp_path / "first")
    assert fit(tmp_path / "second", tmp_path / f"first/step={SAVED_AT}.ckpt") == whole[SAVED_AT:]


def test_accelerate_leaves_a_loader_as_it_is():
    reason = "accelerate is not among what the tests install; pip install accelerate to run this"
    accelerate = pytest.importorskip("accelerate", reason=reason)
    with new_loader() as loader:
        assert accelerate.Accelerator(cpu=True).prepare(loader) is loader
