"""How far an epoch is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`done` of `total` samples of the epoch, over all ranks."""

    epoch: int
    done: int
    total: int
    batches: int
    elapsed_s: float
    began_at: int = 0  # samples that were done before, when it was resumed; below 0 after whole epochs

    @property
    def fraction(self) -> float:
        return self.done / self.total if self.total else 1.0

    @property
    def samples_per_s(self) -> float:
        """Over all ranks, since it began here."""
        return max(0, self.done - self.began_at) / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def left_s(self) -> float | None:
        """None: nothing is known yet."""
        return (self.total - self.done) / self.samples_per_s if self.samples_per_s else None

    def __str__(self) -> str:
        left = "" if self.left_s is None else f", {_clock(self.left_s)} left"
        return (
            f"epoch {self.epoch}: {self.done:,} of {self.total:,} samples ({100 * self.fraction:.0f} %), "
            f"{self.samples_per_s:,.0f}/s{left}"
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
