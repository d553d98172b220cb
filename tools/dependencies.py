"""Find the dependencies of a notebook's outputs: its code, the modules that it imports, and the files that they name.

:func:`Library.key` is a hash of all of these. Outputs are stored under it, so a notebook is run again if, and only if,
something has changed on which its outputs may depend:

    the code cells, their tags, the pins of ``requirements.txt``, the version of Python
    the modules of ``lessons_lib`` that the code imports, directly or indirectly, without comments and docstrings
    the data files that this code names: records of ``benchmarks/results``, data sets, weights of trained models

An explorer's scripts and styles are not dependencies. They are added to a page when the page is built
(``book/_ext/stored_outputs.py``).
"""

import ast
import fnmatch
import hashlib
import json
import platform
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

LIBRARY = "lessons_lib"
RECORDS = "benchmarks/results"
EVERYTHING = "*"  # stands for all modules of a package
CODE = {".py", ".css", ".js", ".md"}  # suffixes of files in the library that are not data

NAMED = re.compile(rf"\b{LIBRARY}(?:\.\w+)*")
PROGRAM = re.compile(rf"^\s*(?:import|from) {LIBRARY}\b", re.MULTILINE)
FROM = re.compile(rf"from ({LIBRARY}[\w.]*) import ([\w, ]+)")
IMPORTING = {"import_module", "__import__"}
FILE = re.compile(r"[\w*?.-]*\.[a-z]\w*")
WRITTEN = re.compile(r"/\*\* .*\bby tools/\w+\.py")  # the first line of a script that holds data
MAGIC = re.compile(r"^(\s*)(?:%(?!%)|!).*$", re.MULTILINE)

Reference = tuple[str, str]  # a module and the name that is imported from it, or "" for the module itself


def references(tree: ast.AST, package: tuple[str, ...] = (), walk=ast.walk) -> set[Reference]:
    """Return all imports in the source, at any depth; relative imports are resolved against ``package``."""
    found = set()
    for node in walk(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            outer = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*outer, *filter(None, [node.module])))
            found |= {(base, alias.name) for alias in node.names}
    return found


def without_docstrings(tree: ast.Module) -> ast.Module:
    """Remove all docstrings from the tree, in place, and return it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            described = ast.get_docstring(node, clean=False) is not None
            node.body = node.body[described:]
    return tree


def parsed(cells: Iterable[str]) -> ast.Module:
    """Return the code of notebook cells as one syntax tree, without IPython's magic lines.

    Raises:
        SyntaxError: if a cell is not Python.
    """
    return ast.parse("\n".join(MAGIC.sub(r"\1pass", cell) for cell in cells))


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the strings in the code, with an asterisk for each replacement field of an f-string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def attributes(tree: ast.AST) -> Iterator[str]:
    """Yield dotted names that begin with the library, such as ``lessons_lib.attention.masks.causal``."""
    for node in ast.walk(tree):
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if root is not node and isinstance(root, ast.Name) and root.id == LIBRARY:
            yield ast.unparse(node)


def programs(tree: ast.AST) -> Iterator[str]:
    """Yield the strings in the code that are programs for another process and import the library."""
    yield from filter(PROGRAM.search, texts(tree))


def imported_by_name(tree: ast.AST) -> Iterator[str | None]:
    """Yield the module names in calls of ``import_module``, ``None`` for a computed name."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if getattr(call.func, "attr", getattr(call.func, "id", "")) in IMPORTING:
            name = call.args[0] if call.args else None
            yield name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None


class Library:
    """The current state of a repository's library; each file is read once, so create a new object after a change."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._trees: dict[Path, ast.Module] = {}
        self._digests: dict[Path, str] = {}  # of modules
        self._file_digests: dict[Path, str] = {}
        self._references: dict[Path, set[Reference]] = {}
        self._names: dict[Path, set[Path]] = {}  # the data files that each module names
        self._data = {path for path in (root / LIBRARY).rglob("*") if path.is_file() and is_data(path)}
        self._data |= set((root / RECORDS).glob("*.json"))

    def key(self, notebook: dict) -> str:
        """Return the hash of all dependencies of the notebook's outputs."""
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
        tags = [sorted(cell["metadata"].get("tags", [])) for cell in cells]
        about = [sources, tags, self._pins(), platform.python_version()]
        modules, files = self.dependencies(sources)
        about += [[str(path.relative_to(self.root)), self._code(path)] for path in sorted(modules)]
        about += [[str(path.relative_to(self.root)), self._bytes(path)] for path in sorted(files)]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]

    def dependencies(self, cells: Iterable[str]) -> tuple[set[Path], set[Path]]:
        """Return the library's modules on which the code of these cells depends, and its data files.

        Code that is not valid Python depends on everything.
        """
        try:
            tree = parsed(cells)
        except SyntaxError:
            modules = self._modules_of(LIBRARY)
            return modules, set(self._data)
        modules = self._closure(self._library_references(tree))
        files = self._named_files(tree, self._data | self._modules_of(LIBRARY))
        for path in modules:
            if path not in self._names:
                self._names[path] = self._named_files(self.tree(path), self._data)
            files |= self._names[path]
        return modules, files

    def tree(self, path: Path) -> ast.Module:
        """Return the syntax tree of a module, without docstrings."""
        if path not in self._trees:
            self._trees[path] = without_docstrings(ast.parse(path.read_text(encoding="utf-8")))
        return self._trees[path]

    def file(self, module: str) -> Path | None:
        """Return the file of a module of the library, or ``None`` if there is no such module."""
        path = self.root.joinpath(*module.split("."))
        return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)

    def _closure(self, wanted: Iterable[Reference]) -> set[Path]:
        """Return the files of all modules to which these references lead, directly or indirectly."""
        found: set[Path] = set()
        todo, seen = [*wanted], set()
        while todo:
            reference = todo.pop()
            if reference in seen:
                continue
            seen.add(reference)
            for module in self._resolve(*reference):
                path = self.file(module)
                if path is None or path in found:
                    continue
                found.add(path)
                if path not in self._references:
                    self._references[path] = self._library_references(
                        self.tree(path), path.relative_to(self.root).parent.parts
                    )
                todo += self._references[path]
        return found | {above for path in found for above in self._parent_packages(path)}

    def _parent_packages(self, path: Path) -> Iterator[Path]:
        """Yield the packages that contain a module, which Python runs first; their own imports are not followed."""
        package = path.relative_to(self.root).parent.parts
        for n in range(1, len(package) + 1):
            above = self.file(".".join(package[:n]))
            if above is not None and not self._only_reexports(".".join(package[:n])):
                yield above

    def _library_references(self, tree: ast.AST, package: tuple[str, ...] = ()) -> set[Reference]:
        """Return all references to the library in the code, however it is imported."""
        found = references(tree, package) | {(name, "") for name in attributes(tree)}
        for name in imported_by_name(tree):
            found.add((LIBRARY, EVERYTHING) if name is None else (name, ""))
        for text in programs(tree):
            for module, names in FROM.findall(text):
                found |= {(module, name.split(" as ")[0].strip()) for name in names.split(",")}
            found |= {(name, "") for name in NAMED.findall(FROM.sub("", text)) if name != LIBRARY}
            found |= {(LIBRARY, EVERYTHING) for word in IMPORTING if word in text}
        return {pair for pair in found if pair[0].split(".")[0] == LIBRARY}

    def _resolve(self, module: str, name: str) -> set[str]:
        """Return the modules to which a reference leads.

        A package that only re-exports names is skipped, so that an import of one explorer does not depend on the
        others.
        """
        while self.file(module) is None:  # such as lessons_lib.attention.masks.causal, an attribute
            module, _, name = module.rpartition(".")
            if not module:
                return set()
        if name == EVERYTHING:
            return {self._module(path) for path in self._modules_of(module)}
        if not name:
            return {module}
        if self.file(f"{module}.{name}"):
            return {f"{module}.{name}"}
        if not self._only_reexports(module):
            return {module}
        reexported, own = self._exports(module)
        if name in reexported:
            return self._resolve(*reexported[name])
        if name in own:
            return {module}
        return set() if re.fullmatch("__.*__", name) else self._resolve(module, EVERYTHING)

    def _only_reexports(self, module: str) -> bool:
        """Return whether a package defines nothing and only re-exports names."""
        path = self.file(module)
        if path is None or path.name != "__init__.py":
            return False
        defined = {node.name for node in self.tree(path).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        return defined <= {"__getattr__", "__dir__"}

    def _exports(self, module: str) -> tuple[dict[str, Reference], set[str]]:
        """Return the names that a package re-exports, with their origins, and the names that it assigns itself."""
        path = self.file(module)
        assert path is not None
        reexported: dict[str, Reference] = {}
        own: set[str] = set()
        package = path.relative_to(self.root).parent.parts
        for node in self.tree(path).body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    one = ast.ImportFrom(node.module, [ast.alias(alias.name)], node.level)
                    (reexported[alias.asname or alias.name],) = references(one, package)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                own |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        return reexported, own

    def _modules_of(self, package: str) -> set[Path]:
        """Return all files of a package, or the file of a module."""
        path = self.file(package)
        assert path is not None
        return set(path.parent.rglob("*.py")) if path.name == "__init__.py" else {path}

    def _module(self, path: Path) -> str:
        return ".".join(path.relative_to(self.root).with_suffix("").parts).removesuffix(".__init__")

    def _named_files(self, tree: ast.AST, among: set[Path]) -> set[Path]:
        """Return the files whose names, or for data files a matching pattern, occur in the strings of the code."""
        names = {name for text in texts(tree) for name in FILE.findall(text)}
        patterns = [name.replace(".", "*.", name[0] == ".") for name in names if "*" in name or name[0] == "."]
        found = {path for path in among if path.name in names}
        others = [path for path in among if path.suffix not in CODE]
        return found | {path for path in others for pattern in patterns if fnmatch.fnmatch(path.name, pattern)}

    def _code(self, path: Path) -> str:
        """Return the hash of a module's code."""
        if path not in self._digests:
            self._digests[path] = hashlib.sha256(ast.dump(self.tree(path)).encode()).hexdigest()
        return self._digests[path]

    def _bytes(self, path: Path) -> str:
        """Return the hash of a file."""
        if path not in self._file_digests:
            self._file_digests[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        return self._file_digests[path]

    def _pins(self) -> list[str]:
        lines = (self.root / "requirements.txt").read_text(encoding="utf-8").splitlines()
        return [pin for line in lines if (pin := line.partition("#")[0].strip())]


def is_data(path: Path) -> bool:
    """Return whether a file is data and not code; a script is data if a tool has written it."""
    if "__pycache__" in path.parts:
        return False
    if path.suffix == ".js":
        with path.open(encoding="utf-8") as file:
            return WRITTEN.match(file.readline()) is not None
    return path.suffix not in CODE
