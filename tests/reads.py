"""Counts what would make the host wait for a device: everything that brings a tensor's value into Python."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = (
    "item", "_local_scalar_dense", "is_nonzero", "nonzero", "equal", "unique", "_unique2", "masked_select", "bincount",
    "repeat_interleave.Tensor",
)  # fmt: skip
"""Operations that hand a value to Python, or whose result's shape depends on values."""
SILENT = ("tolist", "cpu", "numpy", "__array__")
"""Methods that read a CPU's tensor without any operation."""


class _Operations(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        if any(name == waiting or name.startswith(f"{waiting}.") for waiting in WAITING):
            self.found.append(name)
        if name.startswith("index.") and any(i is not None and i.dtype == torch.bool for i in args[1]):
            self.found.append("index by a mask")
        return func(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Within it, `found` grows by a name for every such read."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._operations = _Operations(self.found)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in SILENT or (name == "to" and "cpu" in args[1:]):
            self.found.append(name)
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Reads:
        self._operations.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        self._operations.__exit__(*problem)
