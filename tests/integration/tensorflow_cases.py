"""Plays the ways TensorFlow and Keras read a holdfast dataset, in one process, and says what came out."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import holdfast as hold
import leftovers
import line_server
from factories_dtypes import ROWS, bits_of, made
from factories_dtypes import SCHEMA as COLUMNS
from holdfast.data.formats.columns import RaggedColumn
from holdfast.tensorflow import Passes

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "data" / "loader"))

from factories_files import SCHEMA, make_shards

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


def dataset(ask: dict[str, Any]) -> hold.Dataset:
    ds = hold.read(ask["folder"], SCHEMA).shuffle(seed=7).limits(memory="200MB")
    if ask.get("batch", 16):
        ds = ds.batch(ask.get("batch", 16), drop_last=ask.get("drop_last", False))
    return ds


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in np.atleast_1d(batch["id"].numpy())]


def described(made: Any) -> dict[str, str]:
    return described_spec(made.element_spec)


def described_spec(specs: dict[str, Any]) -> dict[str, str]:
    return {name: f"{type(spec).__name__} {spec.shape} {spec.dtype.name}" for name, spec in sorted(specs.items())}


def left(before: leftovers.Picture) -> dict[str, list[str]]:
    """TensorFlow's own threads show once they have run Python code, and stay."""
    found = leftovers.wait_until_clean(before, grace_s=0.5)
    found["thread"] = [name for name in found.get("thread", []) if not name.startswith("Dummy-")]
    return {kind: things for kind, things in found.items() if things}


# ---- the cases ---------------------------------------------------------------------------------------------


def make(ask: dict[str, Any]) -> None:
    make_shards(Path(ask["folder"]), ask["counts"])


def order(ask: dict[str, Any]) -> Any:
    """As holdfast itself has it."""
    with dataset(ask).iterate(ask.get("epoch", 0)) as it:
        return [int(i) for batch in it for i in batch["id"]]


def read(ask: dict[str, Any]) -> Any:
    found, whole = [], True
    made = dataset(ask).tf()
    for batch in made:
        for at, number in enumerate(batch["id"].numpy().tolist()):
            found.append(number)
            whole &= batch["name"][at].numpy() == f"sample {number}".encode()
            whole &= batch["emb"][at].numpy().tolist() == [number * 3, number * 3 + 1, number * 3 + 2]
            whole &= batch["tags"][at].numpy().tolist() == list(range(number % 4))
    return {"ids": found, "whole": bool(whole), "spec": described(made)}


def dtypes(ask: dict[str, Any]) -> Any:
    """Which columns of any dtype and shape are not the same, bit by bit; as batches and as samples."""
    data = made(np.random.default_rng(12), ROWS)
    folder = Path(ask["folder"]).with_name("dtypes.hold")
    with hold.write(folder, COLUMNS).part("a") as part:
        part.extend(data)
    [batch] = hold.read(folder).batch(ROWS).tf()
    found = {"batch": [name for name in data if bits_of(_column(batch[name])) != bits_of(data[name])]}
    sample = next(iter(hold.read(folder).take(1).tf()))
    found["sample"] = [name for name in data if _bits(_column(sample[name])) != _bits(data[name][0])]
    return found


def _bits(value: Any) -> Any:
    """Of one sample's value."""
    return bits_of([value] if np.isscalar(value) or isinstance(value, np.ndarray) else value)


def _column(value: Any) -> Any:
    if not isinstance(value, tf.RaggedTensor):
        return value.numpy()
    return RaggedColumn(_column(value.values), value.row_splits.numpy())


def passes(ask: dict[str, Any]) -> Any:
    """The second is broken off."""
    made = Passes(dataset(ask), epoch=2)
    found = [ids(made.dataset), ids(made.dataset.take(1)), ids(made.dataset)]
    made.set_epoch(1)
    return [*found, ids(made.dataset), ids(made.dataset)]


def samples(ask: dict[str, Any]) -> Any:
    made = dataset(ask | {"batch": 0}).tf()
    found = [(int(one["id"]), len(one["tags"])) for one in made]
    return {"tags": [tags for _, tags in found[:3]], "ids": [number for number, _ in found], "spec": described(made)}


RICH = {
    "id": hold.Int64(),
    "words": hold.Bytes(2),
    "grid": hold.Float32(2, 2),
    "boxes": hold.Ragged(hold.Float32(4)),
    "parts": hold.Ragged(hold.Bytes()),
}


def rich(ask: dict[str, Any]) -> Any:
    path = Path(ask["folder"]).parent / "rich.tfrecord"
    if not path.exists():
        with hold.TFRecordWriter(path, RICH) as writer:
            for i in range(5):
                writer.append(
                    id=i,
                    words=[b"a\0", b"%d" % i],
                    grid=[[i, 1], [2, 3]],
                    boxes=[[i] * 4] * i,
                    parts=[b"p%d" % n for n in range(i % 3)],
                )
    made = hold.read(path, RICH).batch(4).tf()
    batch = next(iter(made))
    return {
        "spec": described(made),
        "words": [[word.decode() for word in row] for row in batch["words"].numpy().tolist()],
        "boxes": batch["boxes"].to_list()[2],
        "parts": [[part.decode() for part in row] for row in batch["parts"].to_list()],
        "single": described(hold.read(path, RICH).tf()),
    }


EVERY = {
    "id": hold.Int64(),
    "grid": hold.Float32(2, 2),
    "word": hold.Bytes(),
    "words": hold.Bytes(2),
    "given": hold.Float32(default=1.5),
    "numbers": hold.Ragged(hold.Int64()),
    "boxes": hold.Ragged(hold.Float32(4)),
    "parts": hold.Ragged(hold.Bytes()),
    "pairs": hold.Ragged(hold.Bytes(2)),
    "lists": hold.Ragged(hold.Ragged(hold.Int64())),
    "lists_of_pairs": hold.Ragged(hold.Ragged(hold.Bytes(2))),
}
FILTERS: dict[str, Callable[[Any], bool] | None] = {
    "none": None,
    "all": lambda sample: False,
    "but the last": lambda sample: int(sample["id"]) == 8,
}


def every_column(ask: dict[str, Any]) -> Any:
    """What differs between holdfast's own rows and TensorFlow's, over the ways to read one file."""
    path = Path(ask["folder"]).parent / "every.tfrecord"
    if not path.exists():
        with hold.TFRecordWriter(path, EVERY, sequence=True) as writer:
            for i in range(9):
                n, pair = i % 3, [b"a\0", b"%d" % i]
                writer.append(
                    id=i,
                    grid=[[i, 1], [2, 3]],
                    word=b"w" * i,
                    words=pair,
                    given=i,
                    numbers=[i] * n,
                    boxes=[[i] * 4] * n,
                    parts=[b"p\0"] * n,
                    pairs=[pair] * n,
                    lists=[[1] * k for k in range(n)],
                    lists_of_pairs=[[pair] * k for k in range(n)],
                )
    ds = hold.read(path, EVERY)
    if (keep := FILTERS[ask["filtered"]]) is not None:
        ds = ds.filter(keep)
    if ask["mapped"]:
        ds = ds.map(dict)
    if ask["how"] != "samples":
        ds = ds.batch(4, collate=ask["how"])
    with ds.iterate() as it:
        want = [{name: as_lists(value) for name, value in rows.items()} for rows in it]
    made = ds.tf()
    got = [{name: as_lists(value) for name, value in rows.items()} for rows in made]
    if ask["how"] != "samples":  # natively, a batch without samples may be without columns
        want = [rows if rows.get("id") else {name: [] for name in EVERY} for rows in want]
    return {"rows": len(got), "same": got == want}


def as_lists(value: Any) -> Any:
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    if isinstance(value, tf.Tensor):
        value = value.numpy()
    if isinstance(value, memoryview):
        return bytes(value)
    return value.tolist() if hasattr(value, "tolist") else value


def nested(ask: dict[str, Any]) -> Any:
    def lists(sample: dict[str, Any]) -> dict[str, Any]:
        return {"id": sample["id"], "two": np.full((int(sample["id"]) % 3, 2), 7.0, np.float32)}

    made = hold.read(ask["folder"], SCHEMA).map(lists).batch(4, collate="ragged").tf()
    return {"spec": described(made), "two": next(iter(made))["two"].to_list()}


def cardinality(ask: dict[str, Any]) -> Any:
    """What is said of each, and what came."""
    base = hold.read(ask["folder"], SCHEMA).shuffle(seed=7)
    some = base.filter(lambda sample: sample["id"] > 5)
    batched = base.shard((1, 3)).batch(16)
    state = Passes(batched).state_after(2, epoch=0)
    made = {
        "batches": batched.tf(),
        "dropped": base.batch(16, drop_last=True).tf(),
        "samples": base.skip(10).tf(),
        "repeated": batched.repeat(3).tf(),
        "filtered": some.tf(),
        "filtered batches": some.batch(16).tf(),
        "mixed": hold.mix({base: 0.5, base.select("id", "name", "emb", "tags"): 0.5}).batch(16).tf(),
        "resumed": Passes(batched, state=state).dataset,
        "next epoch": Passes(batched, state=state | {"epoch": 1, "done": 0}).dataset,
    }
    found = {name: [int(one.cardinality()), sum(1 for _ in one)] for name, one in made.items()}
    return found | {"for ever": int(base.repeat().tf().cardinality())}


def structures(ask: dict[str, Any]) -> Any:
    """Tuples and nested dicts, with lists and strings in them; and batches of no samples."""

    def nest(sample: dict[str, Any]) -> Any:
        return {"a": sample["emb"], "deep": {"name": sample["name"], "tags": sample["tags"]}}, (sample["id"],)

    ds = dataset(ask | {"batch": 0})
    made = ds.map(nest).filter(lambda sample: sample[1][0] % 50 == 0).batch(16, collate="ragged").tf()
    x, (number,) = made.element_spec
    found = [int(i) for _, (numbers,) in made for i in numbers]
    given = (tf.TensorSpec([], tf.string), tf.TensorSpec([None], tf.int64))
    pairs = ds.map(lambda sample: (sample["name"], sample["tags"]))
    try:
        pairs.tf(spec={"x": given[0]})
        wrong = ""
    except hold.errors.SchemaError as error:
        wrong = str(error)
    return {
        "spec": described_spec({"a": x["a"], "name": x["deep"]["name"], "tags": x["deep"]["tags"], "id": number}),
        "batches": sum(1 for _ in made),
        "ids": found,
        "given": [len(tags) for _, tags in pairs.tf(spec=given)],
        "wrong": wrong,
    }


CALLS: list[int] = []


def squared(sample: dict[str, Any]) -> dict[str, Any]:
    CALLS.append(int(sample["id"]))
    return {"id": sample["id"], "image": np.full((4, 4, 1), sample["id"], np.uint8), "text": "ü"}


def mapped(ask: dict[str, Any]) -> Any:
    """Functions are asked what they make; all they make arrives."""
    ds = (
        hold.read(ask["folder"], SCHEMA)
        .shuffle(seed=7)
        .map(squared, num_workers=2)
        .batch(16, drop_last=ask["drop_last"])
    )
    made = ds.tf()
    return {"spec": described(made), "ids": ids(made)}


def told_spec(ask: dict[str, Any]) -> Any:
    def grow(sample: dict[str, Any]) -> dict[str, Any]:
        return {"id": sample["id"], "x": np.zeros(int(sample["id"]) + 1, np.float32)}

    ds = hold.read(ask["folder"], SCHEMA).map(grow)
    padded = ds.batch(3, collate="pad").tf()
    single = ds.tf(spec={"x": tf.TensorSpec([None], tf.float32)})
    try:
        ds.tf(spec={"y": tf.TensorSpec([None], tf.float32)})
        wrong = ""
    except hold.errors.SchemaError as error:
        wrong = str(error)
    return {
        "padded": described(padded),
        "shapes": [list(batch["x"].shape) for batch in padded.take(2)],
        "single": [len(one["x"]) for one in single.take(3)],
        "wrong": wrong,
    }


def without_samples(ask: dict[str, Any]) -> Any:
    """The specs of datasets of no samples, whose functions run on samples that are left out; and how many batches."""
    ds = hold.read(ask["folder"], SCHEMA).shard((0, 1), remainder="drop")

    def twice(sample: dict[str, Any]) -> dict[str, Any]:
        return {"twice": sample["id"] * 2}

    mapped = [ds.take(0).map(twice).batch(2), ds.batch(2).take(0).map(twice), ds.skip(10**6).map(twice).batch(2)]
    mapped += [ds.map(twice).batch(10**6), ds.take(0).map(twice)]
    return [[described(one)["twice"], len(list(one))] for one in (dataset.tf() for dataset in mapped)]


def padded_and_filtered(ask: dict[str, Any]) -> Any:
    """How many rows batches have of which the filter takes three samples, and none."""
    ds = hold.read(ask["folder"], SCHEMA).take(12)
    found = []
    for end in (3, 0):
        made = ds.filter(lambda sample, end=end: int(sample["id"]) < end).map(dict).batch(4, collate="pad").tf()
        found.append([int(batch["tags"].shape[0]) for batch in made])
    return found


def failing(ask: dict[str, Any]) -> Any:
    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 40:
            raise ValueError("no such picture")
        return {"id": sample["id"]}

    before = leftovers.take()
    made = hold.read(ask["folder"], SCHEMA).map(fail, num_workers=2).batch(16).prefetch("1MB").tf()
    said, seen = "", []
    try:
        for batch in made:
            seen += batch["id"].numpy().tolist()
    except tf.errors.OpError as error:
        said = str(error)
    del made
    gc.collect()
    return {"said": said, "seen": len(seen), "left": left(before)}


def dropped(ask: dict[str, Any]) -> Any:
    """Half-way: threads and files go with TensorFlow's iterator."""
    made = hold.read(ask["folder"], SCHEMA).map(squared, num_workers=2).batch(4).prefetch("1MB").tf()
    before = leftovers.take()
    one = iter(made.prefetch(2))
    next(one)
    at_work = [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast-")]
    del one
    gc.collect()
    return {"at_work": len(at_work), "left": left(before)}


def resumed(ask: dict[str, Any]) -> Any:
    first = Passes(dataset(ask), epoch=3)
    seen = ids(first.dataset.take(ask["taken"]))
    state = first.state_after(ask["taken"], epoch=3)
    then = Passes(dataset(ask | {"batch": ask["then"]}), state=state)
    rest = ids(then.dataset)
    next_epoch = ids(then.dataset)
    then.set_epoch(3)
    return {"seen": seen, "rest": rest, "next": next_epoch, "again": ids(then.dataset) == rest}


def resumed_repeat(ask: dict[str, Any]) -> Any:
    """In the second of the three epochs of a pass; and at the beginning of one that is not the first of its pass."""
    ds = dataset(ask).repeat(3)
    each = len(dataset(ask))
    first = Passes(ds, epoch=3)
    seen = ids(first.dataset.take(each + 2))
    state = first.state_after(each + 2, epoch=3)
    then = Passes(ds, epoch=3, state=state)
    found = {"seen": seen, "rest": ids(then.dataset), "next": ids(then.dataset)}
    for name, epoch in (("by the pass", 3), ("by the epoch", 4)):
        then.set_epoch(epoch)
        found[name] = ids(then.dataset)
        found[f"{name}, state"] = then.state_after(each + 1, epoch=epoch)
        found[f"{name}, end"] = then.state_after(2 * each - 2, epoch=epoch)
    without_end = Passes(dataset(ask).repeat(), state=state).dataset.take(3 * each)
    between = Passes(ds, epoch=3, state=state | {"done": 0}).dataset
    return found | {
        "place": [state["epoch"], state["done"]],
        "for ever": ids(without_end),
        "between": [int(between.cardinality()), sum(1 for _ in between)],
    }


# ---- strategies --------------------------------------------------------------------------------------------


def mirrored(ask: dict[str, Any]) -> Any:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    shared = strategy.experimental_distribute_dataset(dataset(ask).tf())
    per_replica: list[list[int]] = [[], []]
    for batch in shared:
        for at, part in enumerate(strategy.experimental_local_results(batch["id"])):
            per_replica[at] += part.numpy().tolist()
    return per_replica


NOTES: list[int] = []


class Seen(keras.layers.Layer):
    """Passes its input on, and notes the numbers in it."""

    def call(self, x: Any) -> Any:
        def note(numbers: Any) -> Any:
            NOTES.extend(np.rint(numbers[:, 0] / 3).astype(int).tolist())
            return numbers

        out = tf.numpy_function(note, [x], tf.float32, stateful=True)
        out.set_shape(x.shape)
        return out

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def fit(ask: dict[str, Any]) -> Any:
    """What a model saw in three epochs."""
    NOTES.clear()
    strategy: Any = tf.distribute.get_strategy()
    if ask["mirrored"]:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), Seen(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
    if ask.get("tuples"):  # nothing between the functions of a sample and fit
        made = dataset(ask | {"batch": 0}).map(lambda one: (one["emb"], np.float32(one["id"]))).batch(16).tf()
    else:
        made = dataset(ask).tf().map(lambda batch: (batch["emb"], tf.cast(batch["id"], tf.float32)))
    ends: list[int] = []
    model.fit(
        made,
        epochs=3,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(len(NOTES)))],
    )
    return {"notes": list(NOTES), "ends": ends}


CASES: dict[str, Callable[[dict[str, Any]], Any]] = {
    one.__name__: one
    for one in (
        dropped,
        dtypes,
        every_column,
        failing,
        fit,
        make,
        mapped,
        mirrored,
        nested,
        order,
        padded_and_filtered,
        passes,
        read,
        resumed,
        rich,
        samples,
        cardinality,
        resumed_repeat,
        structures,
        told_spec,
        without_samples,
    )
}


if __name__ == "__main__":
    line_server.serve(lambda ask: CASES[ask["case"]](ask))
