"""Which rank this process is, and who says so.

A framework that already runs knows best, and where one answers, no variable is looked at: what a launcher left in the
environment may be stale, or half of what it should be. Then comes what a framework's launcher put into the environment;
then MPI and SLURM, which may have started launchers rather than ranks. The first that says anything is believed, unless
another of its kind contradicts it: reading half of the data, or all of it twice, must not depend on a guess.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from operator import index
from typing import Any, NamedTuple

from ..errors import InputError
from .sharders import find_sharder

Environment = Mapping[str, str]
ALONE = "alone: no launcher was found"


class Launch(NamedTuple):
    """This process is rank `rank` of `world`; `source` said so. `role`: what it is, if it is none of the ranks."""

    rank: int
    world: int
    source: str
    role: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world} ({self.source})"


def find_rank(shard: str | tuple[int, int] = "auto", environ: Environment | None = None) -> Launch:
    """`shard` is "auto", or a rank and how many there are. Alone, a process is rank 0 of 1.

    So it is while a framework asks for data that shards it among the ranks itself.
    """
    sharder = find_sharder()
    if not isinstance(shard, str):
        given = _explicit(shard)
        if sharder and given.world > 1 and given[:2] == (_told(environ) or given)[:2]:
            raise InputError(
                f'{sharder.name} shards the samples among the ranks itself: expected .shard("auto") or .shard(None), '
                f"which leave that to it, got .shard({given[:2]})"
            )
        return given
    if shard != "auto":
        raise ValueError(f'expected "auto" or (rank, world), got {shard!r}')
    if sharder:
        return Launch(0, 1, f"{sharder.name} shards the samples among the ranks itself")
    return _told(environ) or Launch(0, 1, ALONE)


def default_task(environ: Environment | None = None) -> str | None:
    """A name for this process's work that it gets again after a restart: `rank3`. None: no launcher was found.

    What trains beside the ranks, as an evaluator does, has a name of its own: `evaluator0`.
    """
    found = _told(environ)
    return None if found is None else found.role or f"rank{found.rank}"


def _told(environ: Environment | None) -> Launch | None:
    environ = os.environ if environ is None else environ
    for asked in (_RUNNING, _INNER):
        answers = [found for ask in asked if (found := ask(environ))]
        _agree(answers)
        if answers:
            return answers[0]
    return next((found for ask in _OUTER if (found := ask(environ))), None)


def _explicit(shard: Any) -> Launch:
    try:
        rank, world = (index(one) for one in shard)
    except (TypeError, ValueError):
        raise ValueError(f'expected "auto" or (rank, world), got {shard!r}') from None
    if not 0 <= rank < world:
        raise ValueError(f"expected a rank from 0 to below the number of ranks, got {rank} of {world}")
    return Launch(rank, world, "as given")


def _agree(found: list[Launch]) -> None:
    if len({(one.rank, one.world) for one in found}) > 1:
        said = ", ".join(f"{one.source} says rank {one.rank} of {one.world}" for one in found)
        raise InputError(
            f"who this process is cannot be told: {said}. Say it (shard=(rank, world), task=…), or unset what is stale"
        )


# ---- frameworks that run already: never imported here


def _torch_distributed(environ: Environment) -> Launch | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return _launch("torch.distributed", distributed.get_rank(), distributed.get_world_size())


def _tf_distribute(environ: Environment) -> Launch | None:
    """The strategy in whose scope this is, if its workers are processes that read: other strategies have one reader."""
    tensorflow = sys.modules.get("tensorflow")
    distribute = getattr(tensorflow, "distribute", None)  # None: it is being imported
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
    is_initialized = getattr(distributed, "is_initialized", None)  # older ones have no such function
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
        return None  # Ray is there, but this is no worker of a trainer
    if rank is None or world is None:
        return None
    return _launch("Ray Train", rank, world)


# ---- environments


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
        raise InputError(f"{source}: expected two whole numbers, got {rank!r} and {world!r}") from None
    if not 0 <= found.rank < found.world:
        raise InputError(f"{source}: expected a rank from 0 to below the number of ranks, got {rank} of {world}")
    return found


def _torchrun(environ: Environment) -> Launch | None:
    return _pair(environ, "torchrun", "RANK", "WORLD_SIZE")


def _jax(environ: Environment) -> Launch | None:
    return _pair(environ, "JAX", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES")


def _open_mpi(environ: Environment) -> Launch | None:
    return _pair(environ, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


def _slurm(environ: Environment) -> Launch | None:
    """Only of a step. A batch script has SLURM_PROCID=0 and SLURM_NTASKS too, and is one process all the same."""
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
        raise InputError(f"{source}: expected a {kind} from 0 to below {sizes[kind]}, got {index}")
    before = index if kind != "worker" else sizes["chief"] + sizes["master"] + index
    return _launch(source, before, sum(sizes.values()))


_Ask = Callable[[Environment], Launch | None]
_RUNNING: tuple[_Ask, ...] = (_torch_distributed, _tf_distribute, _jax_distributed, _ray_train)
_INNER: tuple[_Ask, ...] = (_torchrun, _tf_config, _jax)
_OUTER: tuple[_Ask, ...] = (_open_mpi, _slurm)
