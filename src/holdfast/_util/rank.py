"""Finds the rank of this process, and whether a framework shards the samples itself.

A framework that is already initialized comes first, and if one answers, no environment variable is read: what a
launcher left there may be stale or incomplete. Then come the variables of the frameworks' launchers, then those of
MPI and SLURM, which may have started launchers rather than ranks. The first answer counts, unless another of the same
group contradicts it: reading half of the data, or all of it twice, must not depend on a guess.

accelerate, Hugging Face datasets and webdataset let every rank, or the first one, read everything and keep each
rank's part of it. A dataset that shards as well would lose the rest. The inner dataset does not know its wrapper, but
the wrapper's method is on the call stack; also in a forked worker, which inherits the stack, and while a dataset is
pickled for a spawned worker.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from operator import index
from types import FrameType
from typing import Any, NamedTuple

from ..errors import InputError

Environment = Mapping[str, str]
ALONE = "alone: no launcher was found"


class Launch(NamedTuple):
    """The rank of this process, out of `world`, as `source` gives it. `role`: its name if it is none of the ranks."""

    rank: int
    world: int
    source: str
    role: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world} ({self.source})"


def find_rank(shard: str | tuple[int, int] = "auto", environ: Environment | None = None) -> Launch:
    """Returns the rank for `shard`, which is "auto" or (rank, world).

    A process without a launcher is rank 0 of 1, and so is one whose framework shards the samples itself.
    """
    sharder = find_sharder()
    if not isinstance(shard, str):
        given = _explicit(shard)
        if sharder and given.world > 1 and given[:2] == (_detect(environ) or given)[:2]:
            raise InputError(
                f'{sharder.name} shards the samples among the ranks itself: expected .shard("auto") or .shard(None), '
                f"which leave that to it, got .shard({given[:2]})"
            )
        return given
    if shard != "auto":
        raise ValueError(f'expected "auto" or (rank, world), got {shard!r}')
    if sharder:
        return Launch(0, 1, f"{sharder.name} shards the samples among the ranks itself")
    return _detect(environ) or Launch(0, 1, ALONE)


def default_task(environ: Environment | None = None) -> str | None:
    """Returns a name for this process's work that is the same after a restart: `rank3`. None: no launcher was found.

    A process beside the ranks, such as an evaluator, has a name of its own: `evaluator0`.
    """
    found = _detect(environ)
    return None if found is None else found.role or f"rank{found.rank}"


def _detect(environ: Environment | None) -> Launch | None:
    environ = os.environ if environ is None else environ
    for group in (_RUNNING, _INNER):
        answers = [found for ask in group if (found := ask(environ))]
        _check_same(answers)
        if answers:
            return answers[0]
    return next((found for ask in _OUTER if (found := ask(environ))), None)


def _explicit(shard: Any) -> Launch:
    try:
        rank, world = (index(one) for one in shard)
    except (TypeError, ValueError):
        raise ValueError(f'expected "auto" or (rank, world), got {shard!r}') from None
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is out of range for {world} ranks")
    return Launch(rank, world, "as given")


def _check_same(found: list[Launch]) -> None:
    if len({(one.rank, one.world) for one in found}) > 1:
        answers = ", ".join(f"{one.source} says {one.rank} of {one.world}" for one in found)
        raise InputError(
            f"cannot determine the rank: {answers}. Pass shard=(rank, world) or task=…, or unset the stale variables"
        )


# Frameworks that are already initialized; none is imported here.


def _torch_distributed(environ: Environment) -> Launch | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return _launch("torch.distributed", distributed.get_rank(), distributed.get_world_size())


def _tf_distribute(environ: Environment) -> Launch | None:
    """Asks the current strategy, if each of its workers is a process that reads; other strategies have one reader."""
    tensorflow = sys.modules.get("tensorflow")
    distribute = getattr(tensorflow, "distribute", None)  # None while it is being imported
    if distribute is None or not distribute.has_strategy():
        return None
    strategy = distribute.get_strategy()
    if not isinstance(strategy, distribute.MultiWorkerMirroredStrategy):
        return None
    resolver = strategy.cluster_resolver
    cluster = resolver.cluster_spec().as_dict()
    return _tf_task("tf.distribute", cluster, resolver.task_type, resolver.task_id) if cluster else None


def _jax_distributed(environ: Environment) -> Launch | None:
    jax: Any = sys.modules.get("jax")
    distributed = getattr(jax, "distributed", None)
    is_initialized = getattr(distributed, "is_initialized", None)  # missing in older versions
    if is_initialized is None or not is_initialized():
        return None
    return _launch("jax.distributed", jax.process_index(), jax.process_count())


def _ray_train(environ: Environment) -> Launch | None:
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        rank, world = context.get_world_rank(), context.get_world_size()
    except (RuntimeError, AttributeError):
        return None  # Ray is loaded, but this is no worker of a trainer
    if rank is None or world is None:
        return None
    return _launch("Ray Train", rank, world)


# Environment variables.


def _pair(environ: Environment, source: str, rank: str, world: str) -> Launch | None:
    if rank not in environ and world not in environ:
        return None
    for name, other in ((rank, world), (world, rank)):
        if name not in environ:
            raise InputError(f"{source}: {other} is set and {name} is not")
    return _launch(f"{source}: {rank}, {world}", environ[rank], environ[world])


def _launch(source: str, rank: object, world: object) -> Launch:
    try:
        found = Launch(int(str(rank)), int(str(world)), source)
    except ValueError:
        raise InputError(f"{source}: expected two integers, got {rank!r} and {world!r}") from None
    if not 0 <= found.rank < found.world:
        raise InputError(f"{source}: rank {rank} is out of range for {world} ranks")
    return found


def _torchrun(environ: Environment) -> Launch | None:
    return _pair(environ, "torchrun", "RANK", "WORLD_SIZE")


def _jax(environ: Environment) -> Launch | None:
    return _pair(environ, "JAX", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES")


def _open_mpi(environ: Environment) -> Launch | None:
    return _pair(environ, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


def _slurm(environ: Environment) -> Launch | None:
    """Only within a step: a batch script has SLURM_PROCID=0 and SLURM_NTASKS too, but is one process."""
    if "SLURM_STEP_NUM_TASKS" in environ:
        return _pair(environ, "SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    if "SLURM_JOB_ID" in environ or "SLURM_PROCID" not in environ:
        return None
    return _pair(environ, "SLURM", "SLURM_PROCID", "SLURM_NTASKS")


def _tf_config(environ: Environment) -> Launch | None:
    """`{"cluster": {"chief": [a], "worker": [b, c]}, "task": {"type": "worker", "index": 1}}`: rank 2 of 3."""
    text = environ.get("TF_CONFIG", "")
    if not text.strip():
        return None
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        kind, index = task.get("type"), int(task.get("index", 0))
        cluster = {name: list(hosts or ()) for name, hosts in cluster.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"TF_CONFIG: expected a cluster and a task as JSON, got {text[:80]!r} ({error})") from None
    return _tf_task("TF_CONFIG", cluster, kind, index) if cluster and task else None


def _tf_task(source: str, cluster: Mapping[str, list[Any]], kind: Any, index: int) -> Launch:
    sizes = {name: len(cluster.get(name, ())) for name in ("chief", "master", "worker")}
    if kind not in sizes:
        return Launch(0, 1, f"{source}: a task of type {kind!r} reads by itself", f"{kind}{index}")
    if not 0 <= index < sizes[kind]:
        raise InputError(f"{source}: {kind} {index} is out of range for {sizes[kind]} of them")
    before = index if kind != "worker" else sizes["chief"] + sizes["master"] + index
    return _launch(source, before, sum(sizes.values()))


_Ask = Callable[[Environment], Launch | None]
_RUNNING: tuple[_Ask, ...] = (_torch_distributed, _tf_distribute, _jax_distributed, _ray_train)
_INNER: tuple[_Ask, ...] = (_torchrun, _tf_config, _jax)
_OUTER: tuple[_Ask, ...] = (_open_mpi, _slurm)


# Frameworks that shard the samples themselves.


class FrameworkSharder(NamedTuple):
    """`name` is the framework and its mode; `by` is its loader or dataset."""

    name: str
    by: Any


def find_sharder() -> FrameworkSharder | None:
    """Finds the framework that is asking for data now and shards it among several ranks."""
    asked = {name: share for name, share in _SHARDERS.items() if name in sys.modules}
    for frame in callers() if asked else ():
        share = asked.get(module_of(frame))
        if share is not None and (found := share(frame)):
            return found
    return None


def is_asked_by(module: str) -> bool:
    """Whether a function of this module is on the stack."""
    return module in sys.modules and any(module_of(frame) == module for frame in callers())


def module_of(frame: FrameType) -> str:
    """Returns the name of the module that a frame's function belongs to."""
    return str(frame.f_globals.get("__name__", ""))


def local_of(frame: FrameType, name: str) -> Any:
    """Returns a local variable of a frame.

    Before Python 3.13, reading f_locals leaves a dict in the frame that keeps all its objects alive: it is cleared.
    """
    found = frame.f_locals
    value = found.get(name)
    if isinstance(found, dict):
        found.clear()
    return value


def callers() -> Iterator[FrameType]:
    """Yields the frames on the call stack, from the caller on."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _accelerate(frame: FrameType) -> FrameworkSharder | None:
    """Matches a dispatching loader, the dataset that keeps each rank's part, and the loader of such a dataset.

    A stateful loader starts its workers while accelerate's wrapper is still being constructed and has few attributes.
    """
    if sys.modules["accelerate.state"].PartialState().num_processes == 1:
        return None
    asking = local_of(frame, "self")
    if type(asking).__name__ == "DataLoaderDispatcher":
        return FrameworkSharder("accelerate with dispatch_batches=True", asking)
    for keeper in (asking, getattr(asking, "dataset", None), local_of(frame, "dataset")):
        # A Hugging Face dataset outside of an IterableDatasetShard gives each rank some of its files.
        if type(keeper).__name__ == "IterableDatasetShard" or type(keeper).__module__ == "datasets.iterable_dataset":
            return FrameworkSharder("accelerate with dispatch_batches=False", keeper)
    return None


def _datasets(frame: FrameType) -> FrameworkSharder | None:
    """Matches a dataset that went through split_dataset_by_node()."""
    asking = local_of(frame, "self")
    ranks = getattr(getattr(asking, "_distributed", None), "world_size", 1)
    return FrameworkSharder("datasets.split_dataset_by_node", asking) if ranks > 1 else None


def _webdataset(frame: FrameType) -> FrameworkSharder | None:
    """Matches a pipeline that shards what its source yields."""
    asking = local_of(frame, "self")
    return FrameworkSharder("webdataset.split_by_node", asking) if has_stage(asking, "split_by_node") else None


def has_stage(pipeline: Any, name: str) -> bool:
    """Whether one of a webdataset pipeline's functions has this name."""
    return any(getattr(stage, "__name__", "") == name for stage in getattr(pipeline, "pipeline", ()))


_SHARDERS: dict[str, Callable[[FrameType], FrameworkSharder | None]] = {
    "accelerate.data_loader": _accelerate,
    "datasets.iterable_dataset": _datasets,
    "webdataset.pipeline": _webdataset,
}
