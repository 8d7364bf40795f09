"""The rules of the house: where things lie, how long they are, and what may be imported without torch."""

import ast
import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("engine", "experiments", "sim", "workloads")
FOLDERS = {*PACKAGES, "results", "tests"}
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50

IMPORT_ALL = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({blocked!r}))
package = importlib.import_module({package!r})
for module in pkgutil.walk_packages(package.__path__, {package!r} + "."):
    importlib.import_module(module.name)
"""
TENSORS = ("torch", "triton")
TABLES_AND_CLOCK = ("matplotlib", "pandas", "pyarrow", "pydantic", "seaborn", "simpy")


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def run_fresh(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_is_the_one_in_this_repository(package):
    module = importlib.import_module(package)
    assert module.__file__ is not None, f"{package} has no __init__.py"
    assert Path(module.__file__).resolve().is_relative_to(ROOT)


@pytest.mark.parametrize(
    "package,blocked",
    [("engine.core", TENSORS + TABLES_AND_CLOCK), ("sim", TENSORS), ("workloads", TENSORS)],
)
def test_every_module_imports_without_what_its_layer_may_not_use(package, blocked):
    done = run_fresh(IMPORT_ALL.format(package=package, blocked=blocked))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["engine", "experiments"])
def test_the_package_itself_imports_without_torch(package):
    done = run_fresh(f"import sys; sys.modules.update(torch=None, triton=None); import {package}")
    assert done.returncode == 0, done.stderr


def test_the_console_script_starts_without_torch():
    done = run_fresh("import sys; sys.modules.update(torch=None, triton=None); import experiments.cli")
    assert done.returncode == 0, done.stderr


def test_no_file_is_longer_than_the_limit():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in sources()}
    assert {name: n for name, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_the_limit():
    too_long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": length
        for path in sources()
        for node in functions(path)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert too_long == {}


def test_the_top_level_has_only_its_fixed_folders():
    found = {path.name for path in ROOT.iterdir() if path.is_dir()}
    strays = {
        name
        for name in found - FOLDERS
        if not name.startswith(".") and name != "__pycache__" and not name.endswith(".egg-info")
    }
    assert strays == set()


def test_every_package_folder_is_listed_for_the_installer():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    listed = set(project["tool"]["setuptools"]["packages"])
    found = {
        ".".join(init.parent.relative_to(ROOT).parts)
        for package in PACKAGES
        for init in (ROOT / package).rglob("__init__.py")
    }
    assert listed == found
