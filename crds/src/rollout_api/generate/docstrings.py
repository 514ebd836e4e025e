"""The strings under fields, read from source: the models keep no copy of them at run time."""

import ast
import inspect
import sys
from functools import cache
from pathlib import Path

from pydantic import BaseModel


def describe_fields(model: type[BaseModel]) -> dict[str, str]:
    """Documentation of every field by Python name, inherited ones included, on one line each."""
    docs: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base.__module__ != BaseModel.__module__:
            docs |= _fields_of(base.__module__).get(base.__qualname__, {})
    return docs


def describe_model(model: type[BaseModel]) -> str:
    """The first paragraph of a model's own docstring, on one line."""
    return _one_line((inspect.cleandoc(model.__doc__ or "")).split("\n\n")[0])


@cache
def _fields_of(module: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {node.name: _attribute_docs(node) for node in classes}


def _attribute_docs(node: ast.ClassDef) -> dict[str, str]:
    """Strings that directly follow an annotated name (PEP 224's form)."""
    docs = {}
    for statement, after in zip(node.body, node.body[1:], strict=False):
        match statement, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = _one_line(text)
    return docs


def _one_line(text: str) -> str:
    return " ".join(text.split())
