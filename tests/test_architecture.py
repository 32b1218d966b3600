from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import autoplan

PACKAGE = Path(autoplan.__file__).parent

HEAVY = {"ray", "optuna", "paddle", "torch", "sqlalchemy", "rich"}

CORE = {
    "errors",
    "redaction",
    "compiled",
    "interpolation",
    "documents",
    "workload",
    "cluster",
    "job",
    "plan",
    "calibration",
    "extrapolation",
    "pipeline",
    "gradsync",
    "prediction",
    "stage_costs",
    "bounds",
    "predict",
    "batch_scores",
}

# A module imports its own package and what stands on lines above its own, never its own line's
# other packages: DESIGN section 1, in the finest order there is.
ORDER = [
    ["errors", "redaction", "compiled", "interpolation"],
    ["documents"],
    ["workload", "cluster", "job", "plan"],
    ["calibration", "pipeline", "gradsync", "prediction"],
    ["costmodel", "extrapolation"],
    ["stage_costs"],
    ["bounds"],
    ["predict"],
    ["batch_scores"],
    ["storage"],
    ["search"],
    ["execute"],
    ["results"],
    ["report"],
    ["export"],
    ["__init__"],
    ["cli"],
    ["__main__"],
]
RANK = {package: rank for rank, line in enumerate(ORDER) for package in line}


class Import(NamedTuple):
    module: str
    name: str
    """The full name of what is imported; of `from a import b` this is a.b."""
    in_function: bool


def package_of(module):
    """`autoplan.pipeline.bounds` is in `pipeline`; the package itself is `__init__`."""
    return module.split(".")[1] if "." in module else "__init__"


def target_of(name):
    """The part of autoplan that an import reaches; a name that is no module is __init__'s own."""
    part = package_of(name)
    is_module = (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").is_file()
    return part if is_module else "__init__"


def imports_of(tree, module, in_function=False):
    """All import statements of a tree, those inside functions too."""
    for node in ast.iter_child_nodes(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        yield from (Import(module, name, in_function) for name in names)
        inside = in_function or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        yield from imports_of(node, module, inside)


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


IMPORTS = [
    found
    for path in sorted(PACKAGE.rglob("*.py"))
    for found in imports_of(ast.parse(path.read_text()), module_name(path))
]


def leaves_order(found):
    """Whether an import reaches a package that does not stand on a line above."""
    if found.name.split(".")[0] != "autoplan":
        return False
    source, target = package_of(found.module), target_of(found.name)
    return source != target and RANK[target] >= RANK[source]


def test_walk_sees_imports_at_the_top_and_inside_functions():
    names = {(found.module, found.name, found.in_function) for found in IMPORTS}
    assert ("autoplan.predict", "autoplan.plan.Plan", False) in names
    assert ("autoplan.cli.predict", "autoplan.predict.Predictor", True) in names


@pytest.mark.parametrize(
    ("module", "line", "refused"),
    [
        ("autoplan.plan", "from autoplan.predict import Predictor", True),
        ("autoplan.plan", "from autoplan import predict", True),
        ("autoplan.plan", "from autoplan import Workload", True),
        ("autoplan.plan", "def f():\n    import autoplan.job", True),
        ("autoplan.plan", "from autoplan.errors import InputError", False),
        ("autoplan.search.run", "from autoplan.search.study import SearchStudy", False),
    ],
)
def test_order_check_tells_imports_to_the_right_from_those_to_the_left(module, line, refused):
    found = list(imports_of(ast.parse(line), module))
    assert [leaves_order(each) for each in found] == [refused]


def test_every_module_has_its_place_in_the_order():
    assert {package_of(module_name(path)) for path in PACKAGE.rglob("*.py")} <= set(RANK)


def test_imports_point_left_to_right_along_the_flow():
    assert [found for found in IMPORTS if leaves_order(found)] == []


def test_pure_core_imports_no_framework_anywhere():
    core = [found for found in IMPORTS if package_of(found.module) in CORE]
    assert {package_of(found.module) for found in core} >= CORE - {"errors"}
    assert [found for found in core if found.name.split(".")[0] in HEAVY] == []


def test_paddle_is_imported_only_by_runners_and_only_inside_functions():
    found = [each for each in IMPORTS if each.name.split(".")[0] == "paddle"]
    assert found
    for each in found:
        at_home = package_of(each.module) == "execute"
        assert at_home or each.module == "autoplan.costmodel.paddle_program"
        assert each.in_function


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", "import autoplan"],
        ["-m", "autoplan", "--help"],
        ["-m", "autoplan", "predict", "--help"],
    ],
    ids=["import", "help", "predict-help"],
)
def test_start_loads_no_framework(arguments):
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    loaded = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "autoplan" in loaded
    assert loaded & HEAVY == set()
