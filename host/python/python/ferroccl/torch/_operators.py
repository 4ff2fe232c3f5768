"""Operators of torch as the library has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist

_Type = dist.ReduceOp.RedOpType
_BITWISE: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    _Type.BAND: torch.bitwise_and,
    _Type.BOR: torch.bitwise_or,
    _Type.BXOR: torch.bitwise_xor,
}
_NAMES = {
    _Type.SUM: "sum",
    _Type.PRODUCT: "prod",
    _Type.MIN: "min",
    _Type.MAX: "max",
    _Type.AVG: "avg",
    _Type.PREMUL_SUM: "mulsum",
}
# Types that there is no arithmetic of.
_MOVED_ONLY = {
    getattr(torch, name)
    for name in ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2")
    if hasattr(torch, name)
}


class Operator:
    """An operator for elements of one type."""

    __slots__ = ("bitwise", "factor", "name")

    def __init__(self, op: Any, dtype: torch.dtype) -> None:
        kind = getattr(op, "op", op)
        self.factor: float | None = None
        self.bitwise: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
        if dtype in _MOVED_ONLY:
            raise TypeError(f"op: elements of {dtype} can be moved, not reduced")
        if kind in _BITWISE:
            if dtype.is_floating_point or dtype.is_complex:
                raise TypeError(f"op: there is no {kind.name} of {dtype}: it is for integers and booleans")
            self.bitwise = _BITWISE[kind]
            self.name = kind.name
            return
        name = _NAMES.get(kind)
        if name is None:
            raise TypeError(f"op: {op} is no operator that can be had")
        if dtype.is_complex and name not in ("sum", "avg", "mulsum"):
            raise TypeError(f"op: there is no {kind.name} of complex numbers ({dtype})")
        if dtype == torch.bool and name in ("avg", "mulsum"):
            raise TypeError(f"op: there is no {kind.name} of booleans")
        self.name = name
        if name == "mulsum":
            self.factor = float(op.factor)

    def combine(self, parts: torch.Tensor) -> torch.Tensor:
        """What a bitwise operator makes of a row for each rank."""
        assert self.bitwise is not None
        return reduce(self.bitwise, parts.unbind(0))
