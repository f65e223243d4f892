"""torch believes in an accelerator: batches go through the thread that pins them, on any machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch


@contextmanager
def pretended_accelerator() -> Iterator[None]:
    """Pinned memory is memory of its own, here ordinary."""
    with (
        mock.patch.multiple(
            torch.accelerator,
            is_available=lambda: True,
            current_accelerator=lambda: torch.device("cpu"),
            current_device_index=lambda: 0,
            set_device_index=lambda index: None,
        ),
        mock.patch.object(torch.Tensor, "pin_memory", torch.Tensor.clone),
    ):
        yield
