"""Techniques from outside: `package.module:Class`, and names that installed packages register.

A package registers a name as an entry point of the group of a seam, such as `suffice.attention`.
Entry points are only looked for when a name is not built in, or a listing is asked for. The current
folder is searched for modules too, after all others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from suffice.errors import InputError, nearest, one_line, shown, unknown

_owners: dict[str, str] = {}  # by the file of a class that was loaded: what errors call it


@dataclasses.dataclass(frozen=True)
class Registered:
    """A name that a package registers: its `path`, `package.module:Class`, and the package.

    The path is empty if several packages register the name for different classes.
    """

    path: str
    package: str


class Outside:
    """The techniques of one seam that are not built in.

    `kind` is what errors call one, `seam` the end of the entry points' group, `protocol` the name
    of what a class must be, and `needs` are its members.
    """

    def __init__(self, kind: str, seam: str, protocol: str, needs: Iterable[str]) -> None:
        self.kind = kind
        self.protocol = protocol
        self.group = f"suffice.{seam}"
        self.needs = tuple(needs)
        self._loaded: dict[str, type[Any]] = {}  # by the names that they were asked for by

    @functools.cached_property
    def registered(self) -> Mapping[str, Registered]:
        """The names that installed packages register."""
        from importlib.metadata import entry_points

        found: dict[str, Registered] = {}
        for each in entry_points(group=self.group):
            package = each.dist.name if each.dist is not None else "?"
            before = found.setdefault(each.name, Registered(each.value, package))
            if before.path != each.value:
                found[each.name] = Registered("", f"{before.package} and {package}")
        return found

    def split(self, text: str) -> tuple[str, str, str]:
        """Return the name, the colon after it if there is one, and the options of a technique.

        The name is `module:Class` if the class's name follows the first colon, as it does unless
        the module's name is registered.
        """
        name, colon, rest = text.partition(":")
        own, second, options = rest.partition(":")
        if not (own.isidentifier() and _is_module(name)) or name in self.registered:
            return name, colon, rest
        return f"{name}:{own}", second, options

    def load(self, name: str, known: Iterable[str], imports: bool = True) -> type[Any]:
        """Return the class of a registered name, or of `module:Class`.

        `known` are the built-in names, for errors. Without `imports`, only what was loaded before
        is known.

        Raises:
            InputError: There is none, its module cannot be imported, or it is no technique.
        """
        if name in self._loaded:
            return self._loaded[name]
        if not imports:
            raise unknown(self.kind, name, [*known, *self._loaded])
        path = name
        if "/" in name or name.partition(":")[0].endswith(".py"):
            raise InputError(
                f"{self.kind} '{shown(name)}': a file cannot be named. Go to its folder, and "
                "name the module and the class: MODULE:CLASS"
            )
        if ":" not in name:
            if name not in self.registered:
                raise unknown(self.kind, name, [*known, *self.registered])
            path = self.registered[name].path
            if not path:
                raise InputError(
                    f"{self.kind} '{name}': both {self.registered[name].package} register it: "
                    "uninstall one of them"
                )
        owner = f"{self.kind} '{shown(name)}'"
        module, _, attribute = path.partition(":")
        found = self._class(owner, _imported(owner, module, known), attribute)
        self._check(owner, found)
        self._loaded[name] = found
        if is_outside(found) and (file := file_of(found)):
            _owners[file] = owner
        return found

    def name_of(self, technique: type[Any]) -> str:
        """Return the name by which a class was loaded, or else its `module:Class`."""
        loaded = (name for name, found in self._loaded.items() if found is technique)
        return next(loaded, f"{technique.__module__}:{technique.__qualname__}")

    def takes(self, value: object) -> bool:
        """Whether an object is one of a class that could be loaded."""
        own = type(value)
        return dataclasses.is_dataclass(own) and not self._lacking(own)

    def _class(self, owner: str, module: Any, name: str) -> type[Any]:
        found = getattr(module, name, None)
        if isinstance(found, type):
            return found
        own = [
            each
            for each, value in vars(module).items()
            if isinstance(value, type)
            and value.__module__ == module.__name__
            and not each.startswith("_")
        ]
        listed = f"Classes: {', '.join(sorted(own))}" if own else "It has no class of its own"
        where = getattr(module, "__file__", None) or "built in"
        raise InputError(
            f"{owner}: module {module.__name__} ({where}) has no class '{name}'."
            f"{nearest(name, own)} {listed}"
        )

    def _check(self, owner: str, technique: type[Any]) -> None:
        params = technique.__dict__.get("__dataclass_params__")
        if params is None or not params.frozen:
            raise InputError(
                f"{owner}: {technique.__name__} must be a frozen dataclass: put "
                "@dataclass(frozen=True) before it"
            )
        if lacking := self._lacking(technique):
            raise InputError(
                f"{owner}: {technique.__name__} lacks {', '.join(lacking)}: must have the members "
                f"of {self.protocol}"
            )
        try:
            typing.get_type_hints(technique)
        except Exception as error:
            raise InputError(f"{owner}: the type of an option is unknown: {told(error)}") from None

    def _lacking(self, technique: type[Any]) -> list[str]:
        """Return the members that a class lacks."""
        fields = {field.name for field in dataclasses.fields(technique)}
        abstract: frozenset[str] = getattr(technique, "__abstractmethods__", frozenset())
        has = [name in fields or hasattr(technique, name) for name in self.needs]
        missing = [name for name, there in zip(self.needs, has, strict=True) if not there]
        return sorted({*missing, *abstract})


def is_outside(kind: type[Any]) -> bool:
    """Whether a technique's class is not part of suffice."""
    return kind.__module__.partition(".")[0] != "suffice"


def file_of(kind: type[Any]) -> str | None:
    """Return the file of a class's module; None if it has none."""
    file: str | None = vars(sys.modules[kind.__module__]).get("__file__")
    return file


def made(owner: str, technique: type[Any], options: Mapping[str, Any]) -> Any:
    """Return a technique of a class that is not built in.

    Raises:
        InputError: An option without a default is not given, or the class refuses a value.
    """
    for field in dataclasses.fields(technique):
        bare = (field.default, field.default_factory) == (dataclasses.MISSING,) * 2
        if field.init and bare and field.name not in options:
            raise InputError(f"{owner}: option '{field.name}' has no default: give it")
    try:
        return technique(**options)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{owner}: {one_line(error)}") from None
    except Exception as error:
        raise InputError(f"{owner}: {told(error)}") from error


@contextlib.contextmanager
def reported(what: str) -> Iterator[None]:
    """Run code that is not ours: of an exception its user reads one line, that `what` fails.

    Raises:
        InputError: The code raised an exception.
    """
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{what}: {told(error)}") from error


def blamed(error: BaseException) -> str | None:
    """Return an exception in one line, if it passed through the module of a technique."""
    import traceback

    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    owner = next((_owners[each] for each in reversed(files) if each in _owners), None)
    return None if owner is None else f"{owner} fails: {told(error)}"


def told(error: BaseException) -> str:
    """Return a foreign exception in one line: its type, its text, and where it was raised.

    That is the last place in its own code, if it was raised in NumPy or here.
    """
    import traceback  # not before: most runs need none

    known = [
        sys.modules[name].__file__ or "" for name in ("suffice", "numpy") if name in sys.modules
    ]
    others = tuple(str(Path(each).parent) for each in known)
    every = traceback.extract_tb(error.__traceback__)
    frames = [each for each in every if not each.filename.startswith(others)] or every
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        where = ""  # its text says it
    return f"{type(error).__name__}: {one_line(error)}{where}"


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _imported(owner: str, name: str, known: Iterable[str]) -> Any:
    """Import a module, also from the current folder.

    Raises:
        InputError: There is no such module, or it raises an exception.
    """
    here = os.getcwd()  # noqa: PTH109 (an entry of sys.path is text)
    if not {"", here} & set(sys.path):
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise InputError(f"{owner}: importing {name} fails: {told(error)}") from error
    except (Exception, SystemExit) as error:  # whatever it raises is the user's to see
        raise InputError(f"{owner}: importing {name} fails: {told(error)}") from error
    neighbours = {path.stem for path in Path(here).glob("*.py")}
    names = sorted({*known, *neighbours}) if "." not in name else []
    raise InputError(
        f"{owner}: there is no module '{missing}', here or installed.{nearest(missing, names)} "
        f"Known techniques: {', '.join(sorted(known))}"
    )
