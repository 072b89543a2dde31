"""Quick conversion of the words of a command line: a plain value is converted here, and any other by typer.

Typer has each value, and each option that is not given, converted by pydantic, whose import is a quarter of the start
of a short command. A text, a number, a path and a list of texts need none of it. Whatever is not plainly right is left
to typer, which says what is wrong in its own words.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from tools.common.output import parameters_of

__all__ = ["convert_plain_values"]

_INTEGER: Final = re.compile(r"[0-9]{1,15}")
_NUMBER: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")
_NOT_PLAIN: Final = object()


def convert_plain_values(command: Any) -> None:
    """Have plain values of the parameters of a command, and of all below it, converted here."""
    for parameter in parameters_of(command):
        by_typer = getattr(parameter, "get_runtime_param", None)  # typer had no pydantic before it had this
        if by_typer is not None:
            parameter.get_runtime_param = _Conversion(by_typer, parameter.type_descriptor).itself


class _Conversion:
    """Conversion of one parameter, in the place of typer's."""

    def __init__(self, by_typer: Callable[[], Any], descriptor: Any) -> None:
        self._by_typer = by_typer
        self._annotation = descriptor.annotation
        self._info = descriptor.parameter_info

    def itself(self) -> _Conversion:
        """Return this object, where typer would make one."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert a value. Raises what typer raises."""
        is_many = param.multiple or param.nargs == -1
        if value is None:
            return () if is_many else None
        found = _NOT_PLAIN
        if self._info.parser is None and getattr(self._info, "click_type", None) is None:
            found = self._plain_list(value) if is_many else self._plain(value)
        return self._by_typer().coerce(value, param=param, ctx=ctx) if found is _NOT_PLAIN else found

    def _plain_list(self, value: Any) -> Any:
        is_text = get_origin(self._annotation) is list and get_args(self._annotation) == (str,)
        if is_text and isinstance(value, list | tuple) and all(type(each) is str for each in value):
            return [*value]
        return _NOT_PLAIN

    def _plain(self, value: Any) -> Any:
        kind = self._annotation
        if kind is str and type(value) is str:
            return value
        if kind is int or kind is float:
            return self._plain_number(value)
        if kind is Path:
            return self._plain_path(value)
        return _NOT_PLAIN

    def _plain_number(self, value: Any) -> Any:
        kind, info = self._annotation, self._info
        if type(value) is str and (_INTEGER if kind is int else _NUMBER).fullmatch(value):
            value = kind(value)
        is_within = type(value) is kind and (info.min is None or value >= info.min)
        if is_within and (info.max is None or value <= info.max):
            return value
        return _NOT_PLAIN

    def _plain_path(self, value: Any) -> Any:
        info = self._info
        is_asked = info.exists or info.writable or info.resolve_path or info.allow_dash or info.path_type
        if is_asked or not (info.file_okay and info.dir_okay):
            return _NOT_PLAIN
        if isinstance(value, Path):
            return value
        if type(value) is str and (not os.path.lexists(value) or os.access(value, os.R_OK)):
            return Path(value)
        return _NOT_PLAIN
