"""Find the words that code shows: in the cells of a notebook, in ``lessons_lib.page``, in ``lessons_lib.checks``.

Nothing is run. A text is shown if it reaches a function of ``lessons_lib.page``: directly, inside a list, dictionary or
comprehension, or through names and functions of the notebook. An f-string is a message with fields. Rather too many
texts are found than too few: a dictionary's keys count as shown wherever the dictionary is shown.
"""

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dependencies import parsed, without_docstrings
from runs import ROOT

sys.path.insert(0, str(ROOT))
from lessons_lib.page.language import COMMA, split, worded  # isort: skip

PAGE = "lessons_lib.page"
NOT_SHOWN = {"spec", "log", "anchor", "role"}  # arguments whose text is no word
ARGUMENTS = {"xlabel", "ylabel", "query_labels", "key_labels"}  # keys of a dictionary of arguments
PASSING = {"dict", "zip", "enumerate", "list", "tuple", "sorted", "reversed", "max", "min", "next", "iter", "filter"}
PASSING |= {"set", "chain", "product", "islice", "str", "mark", "gettext", "filled"}  # functions that pass texts on
METHODS = {"items", "keys", "values", "get", "format", "join", "replace", "removesuffix", "removeprefix", "capitalize"}
METHODS |= {"strip", "copy", "pop", "split", "rsplit", "partition"}
CODE = re.compile(r"<|[a-z]*_[a-z_]+$|\w+\[")  # an SVG element, a name of a variable
NO_MESSAGES = {"rearrange", "getattr", "startswith", "index"}  # functions of checks whose texts are code
NAMED = re.compile(r"\w+=")  # before a value in the description of an input
MUTATIONS = {"append", "extend", "update", "insert", "setdefault"}


class Binding(NamedTuple):
    """A place that gives a name a value, or adds to it: where, and the expressions from which texts may come."""

    node: ast.AST
    line: int
    scope: ast.AST
    adds: bool
    values: tuple[ast.expr, ...]


def words_of_notebook(path: Path) -> list[str]:
    """Return the different messages of a notebook's code in the order in which they stand there."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return Shown(parsed("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")).messages()


def words_of_library(root: Path = ROOT) -> list[str]:
    """Return the messages of ``lessons_lib.page``, without the explorers.

    They are what the code gives to ``gettext``, ``filled`` and ``mark``, and every text of a drawing.
    """
    found: list[str] = []
    folder = root / PAGE.replace(".", "/")
    for path in sorted([*folder.glob("*.py"), *(folder / "drawings").glob("*.py")]):
        tree = without_docstrings(ast.parse(path.read_text(encoding="utf-8")))
        found += texts_of_drawings(tree) if path.parent.name == "drawings" else marked(tree)
    return list(dict.fromkeys(found))


def messages_of_checks(path: Path) -> list[str]:
    """Return the messages of a file of checks: all its literals with words, but those that are names or code.

    A check puts its message together. What fills a field is a message of its own, and so are the parts of a list: they
    stand without the comma between them.
    """
    tree = without_docstrings(ast.parse(path.read_text(encoding="utf-8")))
    skipped: set[ast.AST] = set()
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Compare() | ast.keyword(arg="pairing"):
                skipped |= set(ast.walk(node))
            case ast.Call() if called(node) in NO_MESSAGES:
                skipped |= set(ast.walk(node))
            case ast.Call():  # one word that is given to a function is a name: of the answer, of an axis
                given = (*node.args, *(one.value for one in node.keywords))
                skipped |= {one for one in given if isinstance(one, ast.Constant) and " " not in str(one.value)}
            case ast.BinOp(left=ast.Constant() | ast.JoinedStr(), op=ast.Add()):
                skipped.add(node.left)  # a sum of texts is a message with a field
    for node in (node for node in walk_in_order(tree) if node not in skipped):
        added = text_of(node.left) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else None
        text = f"{added}{{value}}" if added else text_of(node)
        if text and not CODE.match(text) and worded(NAMED.sub(" ", text_without_fields(text))):
            found.append(text.removeprefix(COMMA))
    return list(dict.fromkeys(found))


def marked(tree: ast.AST) -> Iterator[str]:
    """Yield the literals that code gives to ``gettext``, ``filled`` and ``mark``."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and called(call) in ("gettext", "filled", "mark") and call.args:
            text = call.args[0]
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield text.value if called(call) == "filled" else escaped(text.value)


def texts_of_drawings(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a file of drawings: all literals with words but those of errors, names and paths."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Raise() | ast.Import() | ast.ImportFrom() | ast.Compare():
                skipped |= set(ast.walk(node))
            case ast.Subscript():
                skipped |= set(ast.walk(node.slice))
            case ast.keyword(arg=name) if name in NOT_SHOWN:
                skipped |= set(ast.walk(node))
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                skipped |= set(ast.walk(node))
    for node in walk_in_order(tree):
        text = None if node in skipped else text_of(node)
        if text is not None and worded(text_without_fields(text)) and not CODE.match(text):
            yield text


def walk_in_order(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree in the order of the source, without the literal parts of f-strings."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if isinstance(tree, ast.JoinedStr):
            if isinstance(child, ast.FormattedValue):
                yield from walk_in_order(child.value)
        else:
            yield from walk_in_order(child)


def called(call: ast.Call) -> str:
    """Return the last name of what is called, such as ``lines`` for ``plots.lines``."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def escaped(text: str) -> str:
    """Return a text as a format string without fields."""
    return text.replace("{", "{{").replace("}", "}}")


def text_of(node: ast.AST) -> str | None:
    """Return a literal as a format string: the fields of an f-string have the names of what fills them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return escaped(node.value)
    if not isinstance(node, ast.JoinedStr):
        return None
    parts, names = [], []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            names.append(field_name(part.value, names))
            parts.append(f"{{{names[-1]}}}")
        elif isinstance(part, ast.Constant):
            parts.append(escaped(str(part.value)))
    return "".join(parts)


def field_name(value: ast.expr, taken: list[str]) -> str:
    """Return a name for a field: the only name in its expression, or ``value``, with a number if it is taken."""
    used = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    name = used.pop().strip("_") if len(used) == 1 else "value"
    return next(one for one in (name, *(f"{name}_{k}" for k in range(2, 100))) if one not in taken)


def text_without_fields(text: str) -> str:
    """Return the literal parts of a format string."""
    return " ".join(split(text)[0])


class Shown:
    """The texts of a notebook's code that reach functions of ``lessons_lib.page``."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.found: dict[tuple[int, int], str] = {}
        self._seen: set[ast.AST] = set()
        self._parents: dict[ast.AST, ast.AST] = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }
        self._functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        self._calls: dict[str, list[ast.Call]] = {}
        self._bindings: dict[str, list[Binding]] = {}
        self._keys: dict[str, list[ast.expr]] = {}
        self._pages = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith(PAGE)
            and "widgets" not in (node.module or "")
            for alias in node.names
        }
        self._bind()

    def messages(self) -> list[str]:
        """Return the messages in the order of the code."""
        for call in ast.walk(self.tree):
            if isinstance(call, ast.Call) and self._is_of_page(call.func):
                given = call.args[1:2] if called(call) == "glue" else call.args
                for value in (*given, *(one.value for one in call.keywords if one.arg not in NOT_SHOWN)):
                    self._show(value)
        return list(dict.fromkeys(text for _, text in sorted(self.found.items())))

    def _is_of_page(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Attribute):
            function = function.value
        return isinstance(function, ast.Name) and function.id in self._pages

    def _bind(self) -> None:
        """Note every place that gives a name a value."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind_target(target, node.value, node)
            elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                self._bind_target(node.target, node.value, node, adds=isinstance(node, ast.AugAssign))
            elif isinstance(node, ast.For):
                self._bind_target(node.target, node.iter, node)
            elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and text_of(node.slice):
                self._keys.setdefault(node.value.id, []).append(node.slice)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                self._calls.setdefault(node.func.id, []).append(node)
            elif isinstance(node, ast.Call) and called(node) in MUTATIONS and isinstance(node.func, ast.Attribute):
                self._bind_target(node.func.value, ast.Tuple(list(node.args), ast.Load()), node, adds=True)

    def _bind_target(self, target: ast.expr, value: ast.expr, node: ast.AST, adds: bool = False) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for i, part in enumerate(target.elts):
                inner = part.value if isinstance(part, ast.Starred) else part
                self._bind_target(inner, at_place(value, i) if inner is part else value, node, adds)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            self._note(target.value.id, node, adds=True, values=(target.slice, value))
        elif isinstance(target, ast.Name):
            self._note(target.id, node, adds, (value,))

    def _note(self, name: str, node: ast.AST, adds: bool, values: tuple[ast.expr, ...]) -> None:
        binding = Binding(node, getattr(node, "lineno", 0), self._scope(node), adds, values)
        self._bindings.setdefault(name, []).append(binding)

    def _scope(self, node: ast.AST) -> ast.AST:
        """Return the function in which a node stands, or the module."""
        while node in self._parents and not isinstance(node := self._parents[node], ast.FunctionDef):
            pass
        return node

    def _show(self, node: ast.expr | None) -> None:
        """Note the texts that the value of an expression may hold."""
        if node is None or node in self._seen:
            return
        self._seen.add(node)
        text = text_of(node)
        if text is not None and worded(text_without_fields(text)) and text not in ARGUMENTS:
            self.found[node.lineno, node.col_offset] = text
        for part in self._parts(node):
            self._show(part)

    def _parts(self, node: ast.expr) -> Iterable[ast.expr | None]:
        """Yield the expressions whose texts an expression passes on."""
        match node:
            case ast.JoinedStr():
                yield from (part.value for part in node.values if isinstance(part, ast.FormattedValue))
            case ast.Dict():
                yield from (*node.keys, *node.values)
            case ast.List() | ast.Tuple() | ast.Set():
                yield from node.elts
            case ast.Starred() | ast.NamedExpr():
                yield node.value
            case ast.Subscript():
                yield node.value
            case ast.IfExp():
                yield from (node.body, node.orelse)
            case ast.BoolOp():
                yield from node.values
            case ast.BinOp():
                yield from (node.left, node.right)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                yield node.elt
            case ast.DictComp():
                yield from (node.key, node.value)
            case ast.Name():
                yield from self._values(node)
            case ast.Call(func=ast.Name(id=name)) if name in self._functions:
                yield from self._returned(node, self._functions[name])
            case ast.Call(func=ast.Name(id=name)) if name in PASSING:
                yield from (*node.args, *(one.value for one in node.keywords))
                yield from (ast.Constant(one.arg, lineno=node.lineno, col_offset=node.col_offset + 1 + i)
                            for i, one in enumerate(node.keywords) if one.arg and name == "dict")  # fmt: skip
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in METHODS:
                yield from (owner, *node.args)

    def _values(self, name: ast.Name) -> Iterator[ast.expr]:
        """Yield what a name may stand for where it is used, and the keys by which the code reads it.

        The keys of a record that the notebook reads from a file are known from nothing else.
        """
        yield from self._keys.get(name.id, ())
        node: ast.AST = name
        around: set[ast.AST] = set()
        while node in self._parents:
            node = self._parents[node]
            around.add(node)
            if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
                for generator in node.generators:
                    value = bound(generator.target, generator.iter, name.id)
                    if value is not None:
                        yield value
                        return
            elif isinstance(node, ast.For):
                value = bound(node.target, node.iter, name.id)
                if value is not None and name is not node.iter and name not in ast.walk(node.iter):
                    yield value
                    return
        scope = self._scope(name)
        if isinstance(scope, ast.FunctionDef):
            own = [one for one in self._bindings.get(name.id, []) if one.scope is scope]
            yield from (value for one in own for value in one.values)
            arguments = scope.args
            if any(one.arg == name.id for one in (*arguments.args, *arguments.kwonlyargs)):
                yield from self._given(scope, name.id)
                return
            if own:
                return
        outer = [one for one in self._bindings.get(name.id, []) if isinstance(one.scope, ast.Module)]
        before = [one for one in outer if one.line <= name.lineno] if isinstance(scope, ast.Module) else outer
        before = [one for one in before if one.node not in around]  # a name in its own assignment has its old value
        if isinstance(scope, ast.Module):
            start = max((one.line for one in before if not one.adds), default=0)
            before = [one for one in before if one.line >= start]
        yield from (value for one in before for value in one.values)

    def _returned(self, call: ast.Call, function: ast.FunctionDef) -> Iterator[ast.expr]:
        for node in ast.walk(function):
            if isinstance(node, ast.Return | ast.Yield) and node.value is not None:
                yield node.value

    def _given(self, function: ast.FunctionDef, name: str) -> Iterator[ast.expr]:
        """Yield what calls give to an argument of the notebook's function, and its default."""
        names = [one.arg for one in function.args.args]
        for call in self._calls.get(function.name, ()):
            yield from (one.value for one in call.keywords if one.arg == name)
            if name in names and names.index(name) < len(call.args):
                yield call.args[names.index(name)]
            yield from (one.value for one in call.args if isinstance(one, ast.Starred))
        yield from (one for one in (*function.args.defaults, *function.args.kw_defaults) if one is not None)


def at_place(value: ast.expr, i: int) -> ast.expr:
    """Return the part of a value that the ``i``-th name of a tuple receives, or the whole value if it is unknown."""
    if isinstance(value, ast.Tuple | ast.List):
        if value.elts and all(isinstance(row, ast.Tuple | ast.List) and len(row.elts) > i for row in value.elts):
            return ast.Tuple([row.elts[i] for row in value.elts], ast.Load())  # type: ignore[attr-defined]
        return value.elts[i] if i < len(value.elts) else value
    if isinstance(value, ast.Call):
        if called(value) == "enumerate" and value.args:
            return ast.Constant(0) if i == 0 else value.args[0]
        if called(value) == "zip" and i < len(value.args):
            return value.args[i]
        if (
            called(value) == "items"
            and isinstance(value.func, ast.Attribute)
            and isinstance(value.func.value, ast.Dict)
        ):
            inner = value.func.value
            return ast.Tuple([one for one in (inner.keys if i == 0 else inner.values) if one], ast.Load())
    return value


def bound(target: ast.expr, value: ast.expr, name: str) -> ast.expr | None:
    """Return the part of a loop's values that its target gives to a name, or ``None`` if the target lacks the name."""
    if isinstance(target, ast.Name):
        return value if target.id == name else None
    if isinstance(target, ast.Starred):
        return bound(target.value, value, name)
    if isinstance(target, ast.Tuple | ast.List):
        parts = ((part, at_place(value, i)) for i, part in enumerate(target.elts))
        return next((found for part, one in parts if (found := bound(part, one, name)) is not None), None)
    return None
