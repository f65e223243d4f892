"""Alert rules for Prometheus and a dashboard for Grafana, as files of this package."""

from __future__ import annotations

from pathlib import Path

FILES = ("alerts.yml", "grafana.json")
_FOLDER = Path(__file__).parent


def read_integration(name: str) -> str:
    return (_FOLDER / name).read_text()


def write_integrations(folder: Path) -> list[Path]:
    """Copies the files into a folder, which is created if needed. FileExistsError: one of them is there already."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"holdfast-{name}" for name in FILES]
    for path in paths:
        if path.exists():
            raise FileExistsError(17, "it exists already; remove it, or choose another folder", str(path))
    for name, path in zip(FILES, paths, strict=True):
        path.write_text(read_integration(name))
    return paths
