"""Descriptors and memory over the lives of many loaders: torch's own, and holdfast.torch.DataLoader in its place."""

from __future__ import annotations

from dataclasses import dataclass

from grid import markdown_grid, text_grid
from read_measure import Bench

LOADERS = ("torch", "holdfast")
HEADS = ("scenario", "loaders", "torch: descriptors", "holdfast: descriptors", "torch: RSS", "holdfast: RSS")


@dataclass(frozen=True, slots=True)
class Lives:
    """What was open, and in memory, at the start and after every loader."""

    loader: str
    scenario: str
    descriptors: list[int]
    rss_bytes: list[int]

    @property
    def descriptors_grown(self) -> int:
        return self.descriptors[-1] - self.descriptors[0]

    @property
    def rss_grown_bytes(self) -> int:
        return self.rss_bytes[-1] - self.rss_bytes[0]


def measure_leaks(bench: Bench) -> list[Lives]:
    side = bench.sides.get("read_leaks")
    found = []
    for scenario in side.call("scenarios"):
        bench.say(f"7  {scenario}: {bench.sizes.leak_lives} loaders each")
        for loader in LOADERS:
            told = side.call("lives", loader=loader, scenario=scenario, lives=bench.sizes.leak_lives)
            found.append(Lives(loader, scenario, **told))
    return found


def leak_table(lives: list[Lives], markdown: bool = False) -> str:
    cells = []
    for torch, ours in zip(lives[::2], lives[1::2], strict=True):
        grown = [f"{one.descriptors_grown:+}" for one in (torch, ours)]
        memory = [f"{one.rss_grown_bytes / 1e6:+.1f} MB" for one in (torch, ours)]
        cells.append((torch.scenario.replace("_", " "), str(len(torch.descriptors) - 1), *grown, *memory))
    return (markdown_grid if markdown else text_grid)(HEADS, cells)
