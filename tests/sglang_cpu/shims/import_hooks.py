"""Two import hooks: empty modules in the place of packages that a CPU cannot import, and functions that run on a
module right after its first import. Both work in every process that SGLang spawns, since `sitecustomize` installs
them before anything else is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Patch = Callable[[Any], None]


class _Anything(type):
    """A class whose attributes, subscripts and unions are classes of the same kind: good enough for annotations."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __or__(cls, other: object) -> Any:
        return cls

    __ror__ = __or__


class _Stub(metaclass=_Anything):
    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args else self  # a stubbed decorator leaves what it decorates

    def __class_getitem__(cls, item: object) -> Any:
        return cls

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _StubModule(ModuleType):
    __path__: list[str] = []
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Stub,), {})


class _StubFinder(MetaPathFinder, Loader):
    def __init__(self, packages: frozenset[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in self.packages:
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _AfterImport(MetaPathFinder):
    def __init__(self) -> None:
        self.patches: dict[str, list[Patch]] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        patches = self.patches.get(name)
        spec = PathFinder.find_spec(name, path) if patches else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_patch(module: ModuleType) -> None:
            load(module)
            for patch in patches or ():
                patch(module)

        spec.loader.exec_module = load_and_patch
        return spec


_after_import = _AfterImport()


def after_import(*modules: str) -> Callable[[Patch], Patch]:
    """Decorator: run the function on each of the named modules once it has been imported."""

    def register(patch: Patch) -> Patch:
        for module in modules:
            _after_import.patches.setdefault(module, []).append(patch)
        return patch

    return register


def install(stubs: frozenset[str]) -> None:
    """Install both hooks; packages that are really there win over a stub of the same name."""
    sys.meta_path.insert(0, _after_import)
    sys.meta_path.append(_StubFinder(stubs))
