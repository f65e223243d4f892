"""Trains with Lightning's DDP, started with plain `python`: Lightning starts the other rank itself."""

from __future__ import annotations

import warnings
from typing import Any

import torch.utils.data
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader
from ranks import BATCH, Ledger, batches, unordered
from torch import Tensor, nn

import holdfast.torch

EPOCHS = 3


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.seen: dict[str, list[list[int]]] = {}

    def training_step(self, together: dict[str, Any]) -> Tensor:
        for name, batch in together.items():
            passes = self.seen.setdefault(name, [])
            passes.extend([] for _ in range(self.current_epoch + 1 - len(passes)))
            passes[-1] += [] if batch is None else batch["id"].tolist()
        return self.linear(torch.ones(1, 2)).mean()

    def validation_step(self, batch: dict[str, Any]) -> None:
        self.seen.setdefault("validation", []).append(batch["id"].tolist())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    warnings.simplefilter("ignore")
    loaders = {
        "torch": torch.utils.data.DataLoader(batches().torch(), batch_size=None),
        "torch, workers": torch.utils.data.DataLoader(
            batches().torch(), batch_size=None, num_workers=2, persistent_workers=True
        ),
        "ours": holdfast.torch.DataLoader(batches().torch(), num_workers=2),
        "no loader": batches().torch(),
        "broken off": torch.utils.data.DataLoader(batches().repeat(2).torch(), batch_size=None),
        "torch_map, ours": holdfast.torch.DataLoader(unordered().torch_map(), batch_size=BATCH, shuffle=True),
        "torch_map": torch.utils.data.DataLoader(unordered().torch_map(), batch_size=BATCH, shuffle=True),
    }
    trainer = Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=2,
        max_epochs=EPOCHS,
        limit_train_batches=7,  # of 7; but of 14 where an epoch is broken off
        limit_val_batches=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model, ledger = Model(), Ledger()
    validation = torch.utils.data.DataLoader(batches().torch(), batch_size=None)
    ledger.enter("error", trainer.fit, model, CombinedLoader(loaders, "max_size"), validation)
    ledger.enter("passes", dict, model.seen)
    ledger.write(trainer.global_rank)


if __name__ == "__main__":
    main()
