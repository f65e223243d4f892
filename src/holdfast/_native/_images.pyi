from typing_extensions import Buffer

_Shape = tuple[int, int, int]  # height, width, channels

def jpeg_size(data: Buffer, /) -> tuple[int, int] | None: ...
def decode_jpeg(
    data: Buffer, box: tuple[int, int, int, int], out: Buffer, levels: Buffer | None, shape: _Shape, planar: bool, /
) -> bool: ...
def resize(
    pixels: Buffer,
    size: _Shape,
    box: tuple[float, float, float, float],
    out: Buffer,
    levels: Buffer | None,
    shape: _Shape,
    planar: bool,
    /,
) -> bool: ...
