"""Tensors as memory that the library uses where it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._ferroccl import TYPES

Memory = tuple[int, int, int, Any]

_NUMBERS: dict[torch.dtype, int] = {
    getattr(torch, name): number for name, number in TYPES.items() if hasattr(torch, name)
}
_OPAQUE = {size: TYPES[f"opaque{size}"] for size in (1, 2, 4, 8, 16)}

# Integers of 16 bits are reduced as ones of 32, in a copy: that wraps alike.
WIDENED = {torch.int16: torch.int32, torch.uint16: torch.int32}


def check(name: str, tensor: Any) -> torch.Tensor:
    """A tensor of the CPU's memory."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: it is no tensor, but a {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name}: sparse tensors ({tensor.layout}) are not taken; Tensor.to_dense() makes a dense one")
    if tensor.device.type != "cpu":
        raise ValueError(f"{name}: it is on {tensor.device}, and the backend ferroccl takes tensors of the CPU")
    return tensor


def one(name: str, tensors: Any) -> torch.Tensor:
    """The tensor of a list of one, which is what a rank has."""
    if isinstance(tensors, torch.Tensor):
        return check(name, tensors)
    if len(tensors) != 1:
        raise ValueError(f"{name}: it has {len(tensors)} tensors, and a rank has one")
    return check(name, tensors[0])


def same_type(name: str, tensors: Sequence[torch.Tensor], like: torch.Tensor, like_name: str) -> None:
    for i, tensor in enumerate(tensors):
        if tensor.dtype != like.dtype:
            raise TypeError(f"{name}[{i}]: it is of {tensor.dtype}, and {like_name} of {like.dtype}")


def same_size(name: str, tensors: Sequence[torch.Tensor], like: torch.Tensor, like_name: str) -> None:
    for i, tensor in enumerate(tensors):
        if tensor.numel() != like.numel():
            raise ValueError(
                f"{name}[{i}]: it has {tensor.numel()} elements, and {like_name} has {like.numel()}"
            )


def memory(tensor: torch.Tensor) -> Memory:
    """The memory of a contiguous tensor."""
    number = _NUMBERS.get(tensor.dtype)
    if number is None:
        number = _OPAQUE[tensor.element_size()]
    return (tensor.data_ptr(), tensor.nbytes, number, tensor)


def adjoining(tensors: Sequence[torch.Tensor]) -> Memory | None:
    """The memory of tensors that lie one behind the other in one storage, as the chunks of a tensor do."""
    first = tensors[0]
    at, storage = first.data_ptr(), first.untyped_storage().data_ptr()
    for tensor in tensors:
        if not tensor.is_contiguous() or tensor.untyped_storage().data_ptr() != storage:
            return None
        if tensor.numel() and tensor.data_ptr() != at:
            return None
        at += tensor.nbytes
    start, _, number, _ = memory(first)
    return (start, at - first.data_ptr(), number, list(tensors))


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """It, or a contiguous copy."""
    return tensor.detach().contiguous()


class Outputs:
    """Tensors that a call writes to. What is not contiguous gets its values from a copy, when the call has ended."""

    __slots__ = ("_copies",)

    def __init__(self) -> None:
        self._copies: list[Callable[[], None]] = []

    def writable(self, tensor: torch.Tensor, keep: bool = False) -> torch.Tensor:
        """It, or a contiguous one to be written in its place; with its values if it `keep`s them."""
        if tensor.is_contiguous():
            return tensor
        plain = tensor.detach()
        copy = plain.contiguous() if keep else torch.empty_like(plain, memory_format=torch.contiguous_format)
        self.later(lambda: plain.copy_(copy))
        return copy

    def later(self, copy: Callable[[], Any]) -> None:
        self._copies.append(copy)

    def __bool__(self) -> bool:
        return bool(self._copies)

    def finish(self) -> None:
        copies, self._copies = self._copies, []
        with torch.no_grad():
            for copy in copies:
                copy()
