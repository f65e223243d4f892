"""What a type checker makes of a program that reads with holdfast.

`make lint` checks it; it is never run. A comment that ignores an error where there is none is itself an error.
"""

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import holdfast as hold
import holdfast.torch
from holdfast.data.loader.iterator import Iteration

Array = npt.NDArray[np.float32]


def pair(sample: dict[str, Any]) -> tuple[Array, int]:
    return sample["image"], int(sample["label"])


def jitter(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "image": sample["image"] + rng.normal()}


def of_a_pair(one: tuple[Array, int]) -> bool:
    return one[1] > 0


ds = hold.read("train-*.tfrecord")
assert_type(ds, hold.Dataset[dict[str, Any]])
assert_type(ds[0], dict[str, Any])
assert_type(ds[2:5], list[dict[str, Any]])

batches = ds.shuffle(seed=7).shard("auto", remainder="pad").map(jitter, random=True).batch(64).prefetch(2)
assert_type(batches, hold.Dataset[dict[str, Any]])
for batch in batches:
    assert_type(batch, dict[str, Any])
with batches.iterate() as it:
    assert_type(it, Iteration[dict[str, Any]])
    assert_type(next(it), dict[str, Any])

pairs = ds.map(pair, num_workers=2).filter(of_a_pair).skip(3)
assert_type(pairs, hold.Dataset[tuple[Array, int]])
for image, label in pairs:
    assert_type(image, Array)
    assert_type(label, int)
assert_type(pairs.batch(64), hold.Dataset[Any])  # of tuples of arrays

train, val = ds.split(train=0.9, val=0.1, seed=7)
assert_type(train, hold.Dataset[dict[str, Any]])
assert_type(ds.split(a=10, b=20).a, hold.Dataset[dict[str, Any]])
assert_type(hold.concat([train, val]).select("image"), hold.Dataset[dict[str, Any]])

assert_type(batches.torch(), holdfast.torch.TorchDataset)
assert_type(iter(batches.torch()), Iterator[Any])
assert_type(ds.torch_map(), holdfast.torch.TorchSamples)
batches.tf()

ds.shuffle(7)  # type: ignore[call-arg]
ds.batch(64, how="pad")  # type: ignore[call-overload]
ds.shard(remainder="none")  # type: ignore[arg-type]
ds.map(pair).map(jitter, random=True)  # type: ignore[call-overload]
pairs.torch().no_such_method()  # type: ignore[attr-defined]
