"""Values that are made in every call: immutable for mypy, and cheap to make."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from types import new_class
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Callable

ClassT = TypeVar("ClassT")
ParametersT = ParamSpec("ParametersT")

_UNSET: Any = object()


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def value(kind: type[ClassT]) -> type[ClassT]:
    """Return `kind` as a slotted, keyword-only dataclass whose fields only its constructor may set.

    The type checker refuses an assignment, but the interpreter does not, so a value has no hash. A frozen dataclass
    calls `object.__setattr__` for each field, which took a fifth of the time of a run. Values that third-party code
    receives are frozen at run time as well; docs/decisions/0020-values-of-a-call.md has the rule.
    """
    return dataclass(slots=True, kw_only=True)(kind)


def constructor_of(kind: Callable[ParametersT, ClassT]) -> Callable[ParametersT, ClassT]:
    """Return a function that makes what the dataclass `kind` makes of the same arguments, but in less time.

    CPython packs the keywords of a class's call into a dictionary and unpacks them again for `__init__`, but hands up
    to 15 of a function's call on as they are. `kind` is slotted, keyword-only and has no `__post_init__`. For values
    of which every call makes at least one.

    Raises:
        TypeError: `kind` is another class.
    """
    cls: Any = kind
    is_plain = hasattr(cls, "__slots__") and not hasattr(cls, "__post_init__")
    if not (is_plain and all(each.kw_only for each in fields(cls))):
        raise TypeError(f"{cls.__name__} has no slots, a __post_init__, or a field that is not keyword-only")
    # An object of the same layout that is not frozen yet: its fields are set without a call.
    bases = getattr(cls, "__orig_bases__", cls.__bases__)
    blank = new_class(cls.__name__, bases, exec_body=lambda body: body.update(__slots__=cls.__slots__))
    # Refused here and not in the first call, should the layouts differ.
    blank().__class__ = cls
    names: dict[str, Any] = {"_Blank": blank, "_class": cls, "_unset": _UNSET}
    parameters, lines = [], []
    for each in fields(cls):
        name = each.name
        if each.default is not MISSING or each.default_factory is not MISSING:
            names[f"_default_{name}"] = _UNSET if each.default is MISSING else each.default
            parameter = f"{name}=_default_{name}"
        else:
            parameter = name
        if each.init:
            parameters.append(parameter)
        else:
            lines.append(f" {parameter}")
        if each.default_factory is not MISSING:
            names[f"_make_{name}"] = each.default_factory
            lines.append(f" if {name} is _unset: {name} = _make_{name}()")
        lines.append(f" self.{name} = {name}")
    lines += [" self.__class__ = _class", " return self"]
    text = "\n".join([f"def make(*, {', '.join(parameters)}):", " self = _Blank()", *lines])
    exec(compile(text, f"<constructor of {cls.__name__}>", "exec"), names)  # noqa: S102 - as dataclasses make theirs
    make: Callable[ParametersT, ClassT] = names["make"]
    return make
