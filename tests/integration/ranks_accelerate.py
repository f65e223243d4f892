"""Reads holdfast datasets as accelerate and the Hugging Face Trainer do, on the ranks of `accelerate launch`."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch.utils.data
from accelerate import Accelerator, skip_first_batches
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration, broadcast_object_list
from ranks import BATCH, SAMPLES, SCHEMA, Ledger, batches, one_pass, samples, two_passes, unordered
from torch import Tensor, nn

import holdfast as hold
import holdfast.torch
from holdfast.errors import InputError


def prepared(loader: Any, dispatch: bool | None, *, split: bool = False, stateful: bool = False) -> Any:
    AcceleratorState._reset_state()  # the next one has another configuration
    GradientState._reset_state()
    configuration = DataLoaderConfiguration(
        dispatch_batches=dispatch, split_batches=split, use_stateful_dataloader=stateful
    )
    return Accelerator(cpu=True, dataloader_config=configuration).prepare(loader)


def of_batches(data: Any, **options: Any) -> Any:
    return torch.utils.data.DataLoader(data, batch_size=None, **options)


def of_samples(data: Any, **options: Any) -> Any:
    return torch.utils.data.DataLoader(data, batch_size=BATCH, **options)


def shared(loader: Any, dispatch: bool | None, **options: bool) -> Any:
    return two_passes(prepared(loader, dispatch, **options))


def broken_off() -> Any:
    """Passes of the epochs 0, 1 to its middle, 2; set_epoch(5), 6; a state of epoch 1; and the epoch after it."""
    data = batches().torch()
    loader = prepared(of_batches(data), None)
    passes = [one_pass(loader), one_pass(islice(loader, 3))]
    state = data.state_after(3)
    passes.append(one_pass(loader))
    loader.set_epoch(5)
    passes += [one_pass(loader), one_pass(loader)]
    data.load_state_dict(state)
    return [*passes, one_pass(loader), one_pass(loader)]


def state_read_ahead() -> Any:
    data = batches().torch()
    next(iter(prepared(of_batches(data), None)))
    return data.state_dict()


def skipped() -> Any:
    """As accelerate and the Trainer resume: they read, and throw away."""
    loader = prepared(of_batches(batches().torch()), None)
    loader.set_epoch(1)
    return one_pass(skip_first_batches(loader, 3))


def refused(loader: Any) -> Any:
    """The first rank alone sees the error: it lets the others end, as the end of the data would."""
    try:
        return one_pass(loader)
    except InputError:
        for _ in range(2):
            broadcast_object_list([None, True])
        raise


def generated() -> Any:
    from datasets import IterableDataset  # spawned workers import this program too

    ds = samples()
    return IterableDataset.from_generator(lambda: ({"id": int(sample["id"])} for sample in ds))


def generated_by_files() -> Any:
    """datasets gives each rank some of the files: accelerate asks it to."""
    from datasets import IterableDataset

    def generate(files: list[str]) -> Any:
        for sample in hold.read(files, SCHEMA).shard("auto"):
            yield {"id": int(sample["id"])}

    files = sorted(str(path) for path in Path(sys.argv[1]).glob("*.tfrecord") if path.stat().st_size)
    return IterableDataset.from_generator(generate, gen_kwargs={"files": files})


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.seen: list[int] = []

    def forward(self, id: Tensor, x: Tensor) -> dict[str, Tensor]:
        self.seen += id.tolist()
        return {"loss": self.linear(x / SAMPLES).square().mean()}


def trained(dispatch: bool | None) -> Any:
    from transformers import Trainer, TrainingArguments

    AcceleratorState._reset_state()
    GradientState._reset_state()
    arguments = TrainingArguments(
        output_dir=str(Path(sys.argv[2], "trainer")),
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=BATCH,
        accelerator_config={"dispatch_batches": dispatch, "split_batches": False},
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    model = Model()
    done = Trainer(model=model, args=arguments, train_dataset=samples().torch()).train()
    half = len(model.seen) // 2
    return {"length": done.global_step / 2, "passes": [model.seen[:half], model.seen[half:]]}


def main() -> None:
    torch.set_num_threads(1)
    ledger, rank = Ledger(), Accelerator(cpu=True).process_index
    for dispatch in (True, False, None):
        loader = of_samples(samples().torch())
        ledger.enter(f"samples, {dispatch}", shared, loader, dispatch)
        ledger.enter(f"samples, {dispatch}, split", shared, loader, dispatch, split=True)
        ledger.enter(f"samples, {dispatch}, workers", shared, of_samples(samples().torch(), num_workers=2), dispatch)
        ledger.enter(f"batches, {dispatch}", shared, of_batches(batches().torch()), dispatch)
        ledger.enter(f"datasets, {dispatch}", shared, of_samples(generated()), dispatch)
        ledger.enter(f"Trainer, {dispatch}", trained, dispatch)
    ledger.enter("files", shared, of_samples(generated_by_files()), False)
    spawned = {"multiprocessing_context": "spawn", "persistent_workers": True}
    ledger.enter("fork", shared, of_batches(batches().torch(), num_workers=2), None)
    ledger.enter("spawn", shared, of_batches(batches().torch(), num_workers=1, **spawned), None)
    ledger.enter("ours", shared, holdfast.torch.DataLoader(batches().torch(), num_workers=1), None)
    ledger.enter("torch_map", shared, of_samples(unordered().torch_map(), shuffle=True), None)
    ledger.enter("unprepared", two_passes, of_batches(batches().torch(), num_workers=2))
    ledger.enter("broken off", broken_off)
    ledger.enter("skipped", skipped)
    ledger.enter("state", state_read_ahead)
    ledger.enter("stateful", shared, of_batches(batches().torch()), True, stateful=True)
    ledger.enter("samples, False, stateful", shared, of_samples(samples().torch()), False, stateful=True)
    ledger.enter("given rank", shared, of_batches(batches((rank, 2)).torch()), None)
    ledger.enter("global size", shared, of_batches(samples().batch(global_size=16).torch()), None)
    filtered = batches().filter(lambda batch: batch["id"] % 9 != 0).torch()
    ledger.enter("shortened", refused, prepared(of_batches(filtered), True))
    ledger.write(rank)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
