"""Series of samples as healthy and leaking processes produce them. Each is drawn from a seeded generator."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from holdfast.process.doctor.model import Sample

HOUR_S = 3600.0
EVERY_S = 120.0

# The count at a moment, in hours since the start.
Curve = Callable[[float], float]
Maker = Callable[[random.Random], Curve]


def flat(chance: random.Random) -> Curve:
    base, noise = chance.randint(20, 2000), chance.randint(0, 12)
    return lambda _: base + chance.randint(0, noise)


def sawtooth(chance: random.Random) -> Curve:
    """A job of some minutes opens more and more, then closes all of it."""
    base, height, period = chance.randint(20, 500), chance.randint(20, 800), chance.uniform(0.05, 0.24)
    return lambda hours: base + height * (hours / period % 1) + chance.randint(0, 4)


def bursty(chance: random.Random) -> Curve:
    """Quiet, and now and then many at once."""
    base, likely = chance.randint(20, 500), chance.uniform(0.02, 0.3)
    return lambda _: base + (chance.randint(20, 1500) if chance.random() < likely else chance.randint(0, 8))


def warm_up(chance: random.Random) -> Curve:
    base, height, pace = chance.randint(20, 300), chance.randint(100, 1000), chance.uniform(0.3, 1.5)
    return lambda hours: base + height * (1 - math.exp(-hours / pace)) + chance.randint(0, 8)


def diurnal(chance: random.Random) -> Curve:
    base, height, phase = chance.randint(20, 300), chance.randint(100, 2000), chance.uniform(0, 24)
    return lambda hours: base + height * (1 + math.sin((hours + phase) * math.pi / 12)) / 2 + chance.randint(0, 20)


def one_step(chance: random.Random) -> Curve:
    base, height, when = chance.randint(20, 500), chance.randint(50, 1500), chance.uniform(0, 24)
    return lambda hours: base + (height if hours > when else 0) + chance.randint(0, 8)


def leak(per_day: float) -> Maker:
    """On top of a sawtooth and of bursts."""

    def make(chance: random.Random) -> Curve:
        under = chance.choice((sawtooth, bursty))(chance)
        return lambda hours: under(hours) + int(per_day * hours / 24)

    return make


def lumpy_leak(chance: random.Random) -> Curve:
    """Every 40 minutes or so a job leaves some hundreds at once."""
    base, at = chance.randint(20, 500), 0.0
    lumps: list[tuple[float, int]] = []
    while at < 24 * 7:
        at += chance.uniform(0.3, 1.0)
        lumps.append((at, chance.randint(100, 500)))
    return lambda hours: base + sum(size for when, size in lumps if when <= hours) + chance.randint(0, 8)


HEALTHY: dict[str, Maker] = {
    "flat": flat,
    "sawtooth": sawtooth,
    "bursty": bursty,
    "warm-up": warm_up,
    "diurnal": diurnal,
    "one step": one_step,
}


# ---- what a short watch sees: curves by the second


def teeth(shortest_s: float, longest_s: float) -> Maker:
    """A job opens more and more, then closes all of it, and begins again at once."""

    def make(chance: random.Random) -> Curve:
        base, height, phase = chance.randint(20, 500), chance.randint(20, 800), chance.random()
        period = chance.uniform(shortest_s, longest_s) / HOUR_S
        return lambda hours: base + height * ((hours / period + phase) % 1) + chance.randint(0, 4)

    return make


def collected(shortest_s: float, longest_s: float) -> Maker:
    """What the garbage collector closes: each time after another while, and another number."""

    def make(chance: random.Random) -> Curve:
        base, ends = chance.randint(20, 500), [-chance.uniform(0, longest_s) / HOUR_S]
        heights = [0]

        def curve(hours: float) -> float:
            while ends[-1] <= hours:
                ends.append(ends[-1] + chance.uniform(shortest_s, longest_s) / HOUR_S)
                heights.append(chance.randint(20, 800))
            return base + heights[-1] * (hours - ends[-2]) / (ends[-1] - ends[-2])

        return curve

    return make


def pool(every_s: float) -> Maker:
    """Workers of a pool, one more or one less busy every so often: a random walk between none and all."""

    def make(chance: random.Random) -> Curve:
        base, each, workers = chance.randint(20, 500), chance.randint(1, 6), chance.randint(4, 64)
        busy, at_s = chance.randint(0, workers), 0.0

        def curve(hours: float) -> float:
            nonlocal busy, at_s
            while at_s < hours * HOUR_S:
                at_s += chance.expovariate(1 / every_s)
                busy = min(workers, max(0, busy + chance.choice((-1, 1))))
            return base + each * busy

        return curve

    return make


def on_top(per_hour: float, under: Maker) -> Maker:
    def make(chance: random.Random) -> Curve:
        curve = under(chance)
        return lambda hours: curve(hours) + int(per_hour * hours)

    return make


def make_samples(curve: Curve, hours: float, every_s: float = EVERY_S, seed: int = 0) -> list[Sample]:
    """At moments that are not quite even, as those of a Watch: an even one would meet a sawtooth at the same tooth."""
    chance = random.Random(seed)
    turns = int(hours * HOUR_S / every_s)
    moments = [0.0, *((turn + chance.uniform(-0.25, 0.25)) * every_s for turn in range(1, turns)), turns * every_s]
    return [Sample(at_s=at, fds=int(curve(at / HOUR_S))) for at in moments]


def first_hours(samples: list[Sample], hours: float) -> list[Sample]:
    return [one for one in samples if one.at_s <= hours * HOUR_S]
