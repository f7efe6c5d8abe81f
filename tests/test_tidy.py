"""The source itself: which way imports point, what is banned where, and the README's tree.

Method: read every Python file with ast; one test a rule, each also shown a file that breaks it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("cache", "engine", "sim", "replay", "serve", "experiments", "notebooks")
MAY_IMPORT = {
    "cache": {"cache"},
    "engine": {"cache", "engine"},
    "sim": {"cache", "sim"},
    "replay": {"cache", "engine", "sim", "replay"},
    "serve": {"cache", "engine", "serve"},
    "experiments": {"cache", "engine", "sim", "replay", "serve", "experiments", "moorage"},
    "notebooks": {"replay"},
}
SIM_FROM_CACHE = {"cache.ports", "cache.types"}
LINES_MAX = 300
FUNCTION_LINES_MAX = 70

WORLD = re.compile(
    r"\b(time|os|threading)\.\w|(?<![\w.])(?<!def )open\(|(?<![\w.])print\(|environ|getenv"
)
EVERYWHERE = re.compile(r"except (Base)?Exception\b(?! as error:\n)|\bFIXME\b|\bTODO\b|\bXXX\b")
UNSEEDED = re.compile(r"\brandom\.(random|randint|choice|shuffle|sample|randrange)\(")
MODEL_WORDS = re.compile(
    r"\b(hybrid|flash|third|witness|gdn|gated.delta|delta.?net|delta.rule|attention|indexer|log.sparse"
    r"|qwen\w*|mtp|mrope|rope|rotary|softmax|conv|ngram\w*|ple|per.layer|moe|experts?|router"
    r"|e4m3|nvfp4|vision|tower|jax|transformers?)\b",
    re.I,
)
"""What names a model, a kind of layer or a tensor. Suffixes have n-grams too."""
HOSTS = {
    "cache/host.py",
    "cache/direct.py",
    "cache/transfers.py",
    "cache/workers.py",
    "engine/capture.py",
    "engine/device.py",
    "engine/threads.py",
    "engine/flash/table_cold.py",
    "engine/flash/table_file.py",
    "engine/flash/table_handle.py",
    "engine/flash/table_lane.py",
    "engine/flash/table_warm.py",
}
"""Where the real world may be touched. An n-gram table is gigabytes in a file, and how its bytes
come through the page cache or around it is what those modules are for."""
OPENERS = {"replay/open.py"}
RIGS = "experiments/night/"
"""Drives real clients: processes, clocks and sockets are what it is for."""


def modules() -> list[Path]:
    return [
        path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if "node_modules" not in path.parts
    ]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def code_of(source: str) -> str:
    """The source without docstrings and comments."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                item
                for item in body
                if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
            ] or [ast.Pass()]
    return ast.unparse(tree)


@cache
def parsed(source: str) -> ast.Module:
    """Not to be changed: several rules look at a file."""
    return ast.parse(source)


def imports(source: str) -> Iterator[str]:
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield node.module or ""


def wrong_imports(package: str, source: str) -> list[str]:
    ours = [module for module in imports(source) if module.split(".")[0] in MAY_IMPORT]
    wrong = [module for module in ours if module.split(".")[0] not in MAY_IMPORT[package]]
    if package == "sim":
        wrong += [m for m in ours if m.startswith("cache") and m not in SIM_FROM_CACHE]
    return wrong


def banned(path: str, source: str) -> list[str]:
    code = code_of(source)
    found = [m.group() for m in EVERYWHERE.finditer(source)]
    found += [m.group() for m in UNSEEDED.finditer(code)]
    if path not in HOSTS and path.split("/")[0] in ("cache", "engine", "sim"):
        found += [m.group() for m in WORLD.finditer(code)]
    if path.startswith("replay/") and path not in OPENERS:
        found += [m.group() for m in WORLD.finditer(code) if m.group() != "environ"]
    return found


def long_functions(source: str) -> list[str]:
    return [
        f"{node.name} ({length} lines)"
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]


@pytest.mark.parametrize("path", modules(), ids=name)
def test_a_module_keeps_the_house_rules(path: Path) -> None:
    source, package = path.read_text(), name(path).split("/")[0]
    assert wrong_imports(package, source) == []
    if not name(path).startswith(RIGS):
        assert banned(name(path), source) == []
    assert long_functions(source) == []
    assert len(source.splitlines()) <= LINES_MAX
    assert ast.get_docstring(parsed(source)), "no docstring"


@pytest.mark.parametrize("path", sorted((ROOT / "cache").rglob("*.py")), ids=name)
def test_the_caches_know_no_model(path: Path) -> None:
    assert MODEL_WORDS.findall(path.read_text()) == []


def test_nothing_imports_the_experiments() -> None:
    for path in modules():
        if not name(path).startswith("experiments/"):
            assert not [m for m in imports(path.read_text()) if m.startswith("experiments")], path


def readme_tree() -> dict[str, str]:
    """File to its line, as the README's tree has them."""
    block = (ROOT / "README.md").read_text().split("```tree\n")[1].split("```")[0]
    lines, folder, tree = block.splitlines(), "", {}
    for line in lines:
        if not line.startswith(" "):
            folder = line.split()[0]
        found = re.match(r"  (\S+\.py)\s+(.+)", line)
        if found:
            tree[folder + found.group(1)] = found.group(2)
        elif not line.startswith(" ") and (root := re.match(r"(\S+\.py)\s+(.+)", line)):
            tree[root.group(1)] = root.group(2)
    return tree


def first_line(path: Path) -> str:
    docstring = ast.get_docstring(parsed(path.read_text())) or ""
    return docstring.splitlines()[0].rstrip(".")


def test_the_readmes_tree_lists_every_module_with_its_own_first_line() -> None:
    tree = readme_tree()
    wanted = {
        name(path): first_line(path)
        for path in [*modules(), ROOT / "moorage.py"]
        if path.name != "__init__.py"
    }
    assert {file: line.rstrip(".") for file, line in tree.items()} == wanted


def test_every_test_file_says_its_goal_and_method() -> None:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        docstring = ast.get_docstring(parsed(path.read_text())) or ""
        assert "Method:" in docstring, path


def test_every_module_has_a_test() -> None:
    """Some test imports it, or says in its docstring that it covers it."""
    tested: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        tree = parsed(path.read_text())
        tested |= set(re.findall(r"[a-z_]+(?:\.[a-z_]+)+", ast.get_docstring(tree) or ""))
        tested |= set(imports(path.read_text()))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                tested |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {name(path)[:-3].replace("/", ".") for path in modules() if path.stem != "__init__"}
    rigs = {module for module in ours if module.startswith(RIGS.replace("/", "."))}
    assert ours - rigs - tested == set()


# canaries: a file that breaks a rule is seen


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("cache", "from engine.turn import turn"),
        ("engine", "import replay.trace"),
        ("sim", "from cache.stack import Stack"),
        ("replay", "from experiments import night"),
    ],
)
def test_canary_import_the_wrong_way(package: str, source: str) -> None:
    assert wrong_imports(package, source)


@pytest.mark.parametrize(
    "source",
    [
        "import time\nnow = time.monotonic()",
        "import os\nos.remove('x')",
        "data = open('x').read()",
        "print('x')",
        "import random\nrandom.shuffle([])",
        "try:\n    pass\nexcept Exception:\n    pass",
        "x = 1  # " + "TO" + "DO later",
    ],
)
def test_canary_banned_call(source: str) -> None:
    assert banned("cache/some.py", source)


def test_canary_long_function_and_model_word() -> None:
    assert long_functions("def f():\n" + "    x = 1\n" * 71)
    for said in ("the gdn state", "index.K of an Indexer", "a third model", "float8 e4m3", "MoE"):
        assert MODEL_WORDS.findall(said), said
    assert not MODEL_WORDS.findall("n-grams of float8_e4m3fn, and two thirds of them")
