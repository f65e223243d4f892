"""Contenders: child processes that do the same work, each in its own way, and are measured in turns.

A contender stays for the whole run. It and the parent exchange JSON lines:

{"call": "sums", …}        ->  what the operation returned, not timed
{"measure": "columns", …}  ->  {"seconds": of one pass, "passes": …, "records": …}
"""

from __future__ import annotations

import compileall
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from benchmarks.common import environments
from benchmarks.common.environments import TOP

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}

Job = dict[str, Any]
Round = dict[str, float]
K = TypeVar("K")


# ---- in the parent -----------------------------------------------------------------------------------------


class ContenderError(Exception):
    """A contender cannot take part, and why."""


class Contender:
    """Starts `benchmarks.<subject>.contender_<name>`. Keeps its stderr for the case that it dies."""

    def __init__(self, subject: str, name: str) -> None:
        self.name = name
        python = _python(subject, name)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            [python, "-m", f"benchmarks.{subject}.contender_{name}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **QUIET},
            text=True,
        )

    def call(self, operation: str, **job: Any) -> Any:
        return self._ask({"call": operation, **job})

    def measure(self, operation: str, **job: Any) -> Round:
        answer: Round = self._ask({"measure": operation, **job})
        return answer

    def _ask(self, job: Job) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ContenderError(f"{self.name} ended: {self._exit_reason()}")
        reply = json.loads(line)
        if "error" in reply:
            raise ContenderError(f"{self.name}: {reply['error']}")
        return reply["result"]

    def _exit_reason(self) -> str:
        self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"

    def close(self) -> None:
        """Closes its stdin, so that it ends by itself and removes its temporary files; kills it only if it hangs."""
        try:
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Contenders:
    """Starts each contender of a subject when it is first needed; remembers why one could not start."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._stack = ExitStack()
        self._running: dict[str, Contender] = {}
        self.missing: dict[str, str] = {}
        self.facts: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        # As pip does when it installs: new processes then do not compile holdfast again.
        compileall.compile_dir(str(TOP / "src" / "holdfast"), quiet=2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def get(self, name: str) -> Contender:
        """Raises ContenderError with the reason if it cannot take part."""
        if name in self.missing:
            raise ContenderError(self.missing[name])
        if name not in self._running:
            try:
                contender = self._stack.enter_context(Contender(self._subject, name))
                self.facts[name] = contender.call("facts")
            except ContenderError as error:
                self.missing[name] = str(error)
                raise
            self._running[name] = contender
        return self._running[name]

    @property
    def versions(self) -> dict[str, str]:
        """Of all packages; where two contenders have different ones, that of the first."""
        found: dict[str, str] = {}
        for facts in self.facts.values():
            found = facts["versions"] | found
        return found


def _python(subject: str, name: str) -> str:
    if name not in ("pypi", "images") and not (subject == "peers" and environments.has_requirements(name)):
        return sys.executable
    try:
        return environments.environment_python(name)
    except environments.NotInstalledError as error:
        raise ContenderError(str(error)) from error


def take_rounds(
    contenders: Sequence[K], rounds: int, measure: Callable[[K], Round], limits: Mapping[K, int] | None = None
) -> dict[K, list[Round]]:
    """Measures every contender once a round. `limits`: how many rounds a slow one takes part in, where fewer."""
    taken: dict[K, list[Round]] = {contender: [] for contender in contenders}
    for number in range(rounds):
        # A busy minute of the machine affects all, and none always follows the same other.
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            if number < (limits or {}).get(contender, rounds):
                taken[contender].append(measure(contender))
    return taken


# ---- in the contender --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Pass:
    """The result of one pass. `finish` is called once the clock has stopped."""

    records: int
    finish: Callable[[], object] = lambda: None
    extra: dict[str, float] = field(default_factory=dict)


def serve(operations: Sequence[Callable[[Job], Any]], facts: Callable[[], Mapping[str, Any]]) -> None:
    """Answers jobs, by the names of the operations, until the parent closes the pipe or ends."""
    # What a library prints goes to stderr, so that only answers are on the pipe.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    known = {operation.__name__: operation for operation in operations} | {"facts": lambda _: dict(facts())}
    for line in sys.stdin:
        job = json.loads(line)
        try:
            result = _measured(known[job["measure"]], job) if "measure" in job else _called(known[job["call"]], job)
            reply: Any = {"result": result}
        except Exception as error:  # noqa: BLE001 - the parent reports it
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _called(operation: Callable[[Job], Any], job: Job) -> Any:
    result = operation(job)
    return {"records": result.records} if isinstance(result, Pass) else result


def _measured(operation: Callable[[Job], Pass], job: Job) -> Round:
    """Runs passes for at least `min_s` seconds and returns their means: one rule for all, however fast a pass is."""
    gc.collect()
    total_s, passes, records = 0.0, 0, 0
    extra: dict[str, float] = {}
    while not passes or total_s < job["min_s"]:
        start = time.perf_counter()
        done = operation(job)
        total_s += time.perf_counter() - start
        done.finish()
        passes += 1
        records += done.records
        extra = {name: extra.get(name, 0.0) + amount for name, amount in done.extra.items()}
    means = {name: amount / passes for name, amount in extra.items()}
    return {"seconds": total_s / passes, "passes": passes, "records": records // passes, **means}
