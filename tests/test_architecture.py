"""Who may import whom, and how long a file may be. An arrow that is not listed here is a mistake."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from specchat.model.loops import LOOPS

ROOT = Path(__file__).parent.parent
HOUSE = frozenset({"drafts", "pair", "jobs", "reply", "worker", "yardstick"})
"""Files of the package's top floor that put the rooms together."""
BELOW_HOUSE = frozenset({"chat", "decode", "model"})
ALLOWED: dict[str, frozenset[str]] = {
    "decode": frozenset(),
    "model": frozenset({"decode"}),
    "chat": frozenset({"decode"}),
    "drafts": frozenset({"decode", "model"}),
    "yardstick": frozenset({"decode"}),
    "pair": BELOW_HOUSE | {"drafts", "yardstick"},
    "jobs": frozenset({"chat", "decode", "pair"}),
    "reply": BELOW_HOUSE | {"pair", "jobs", "yardstick"},
    "worker": BELOW_HOUSE | {"pair", "jobs", "reply"},
    "lab": BELOW_HOUSE | HOUSE,
    "ui": BELOW_HOUSE | HOUSE | {"lab"},
    "cli": BELOW_HOUSE | HOUSE | {"lab"},
    "__main__": frozenset({"cli", "lab"}),
    "app": HOUSE | {"cli", "ui", "lab", "model"},
}
LONGEST = 300
LONGER = {
    "specchat/decode/engine.py": "the round, its parts and what keeps the caches true are read together",
}
"""Files that may be somewhat longer, each with the reason."""


def sources() -> list[Path]:
    return [*sorted((ROOT / "specchat").rglob("*.py")), *ROOT.glob("app.py")]


def room_of(path: Path) -> str:
    """ "decode" for specchat/decode/x.py, "worker" for specchat/worker.py, "app" for app.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if len(parts) == 1 else parts[1]


def imports(path: Path) -> list[tuple[str, int]]:
    """Every imported module by its full name, with its line; relative imports resolved, inner ones included."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *filter(None, [node.module])])
            # `from specchat import worker` names a room too.
            found += [(f"{module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def arrows(path: Path) -> list[tuple[str, int]]:
    """The rooms a file imports from, other than its own."""
    rooms = [
        (name.split(".")[1], line)
        for name, line in imports(path)
        if name.startswith("specchat.") and name.split(".")[1] != "__version__"
    ]
    return [(room, line) for room, line in rooms if room != room_of(path)]


def test_the_walk_sees_every_room() -> None:
    seen = {room_of(path) for path in sources()}
    assert {"decode", "model", "chat", "pair", "worker"} <= seen
    assert seen - {"__init__"} <= set(ALLOWED), f"a new room without a rule: {seen - set(ALLOWED)}"
    assert ("decode", "model") not in {(room_of(p), room) for p in sources() for room, _ in arrows(p)}
    assert any(arrows(path) for path in sources()), "the walk finds no import at all"


def test_every_arrow_between_rooms_is_an_allowed_one() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports specchat.{room}"
        for path in sources()
        for room, line in arrows(path)
        if room not in ALLOWED.get(room_of(path), frozenset())
    ]
    assert not wrong, "\n".join(wrong)


def test_the_algorithm_needs_torch_and_the_standard_library_only() -> None:
    wrong = []
    for path in sources():
        if room_of(path) != "decode":
            continue
        without_torch = path.name in ("stats.py", "events.py", "__init__.py")
        allowed = {*sys.stdlib_module_names, "specchat", *([] if without_torch else ["torch"])}
        wrong += [
            f"{path.relative_to(ROOT)}:{line} imports {name}"
            for name, line in imports(path)
            if name.split(".")[0] not in allowed
        ]
    assert not wrong, "\n".join(wrong)


def test_a_change_of_anything_that_compiled_loops_are_made_of_is_noticed() -> None:
    """Machine code is kept for a state of `LOOPS`; what those files import must be among them, or called by Python only."""
    listed = {(ROOT / "specchat" / name) for name in LOOPS}
    by_python_only = {"decode.law", "decode.offered", "model.ahead", "model.loops", "model.store"}
    making = {"specchat.model.compiled.compiled", "numba.njit", "numba.cfunc", "numba.extending.intrinsic"}
    unlisted = [
        str(path.relative_to(ROOT))
        for path in sources()
        if path not in listed and making & {name for name, _ in imports(path)}
    ]
    assert not unlisted, "loops are compiled there"
    for path in listed:
        for name, _ in imports(path):
            parts = name.split(".")
            module = ".".join(parts[1:3])
            if parts[0] == "specchat" and module not in by_python_only and len(parts) > 2:
                assert ROOT / "specchat" / f"{parts[1]}/{parts[2]}.py" in listed, f"{path.name} takes {name}"


@pytest.mark.parametrize(
    ("library", "rooms"),
    [("gradio", {"ui"}), ("transformers", {"model", "chat", "pair", "lab"}), ("plotly", {"ui", "lab"})],
)
def test_a_library_is_known_to_its_rooms_alone(library: str, rooms: set[str]) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources()
        for name, line in imports(path)
        if name.split(".")[0] == library and room_of(path) not in rooms
    ]
    assert not wrong, f"{library} is imported outside {sorted(rooms)}: {wrong}"


def test_nothing_loads_code_or_pickles_from_a_model_folder() -> None:
    wrong = []
    for path in sources():
        wrong += [
            f"{path.name} imports {name}" for name, _ in imports(path) if name.split(".")[0] == "pickle"
        ]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                safe = isinstance(node.value, ast.Constant) and node.value.value is False
                wrong += [] if safe else [f"{path.name} trusts remote code"]
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load":
                wrong.append(f"{path.name} uses torch.load")
    assert not wrong, wrong


def test_building_the_page_does_not_wait_for_the_models_libraries() -> None:
    asked = "import sys, specchat.ui.page; print('transformers' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    assert found.stdout.split()[-1] == "False", "importing specchat.ui.page imports transformers"


def test_files_are_short_enough_to_be_read() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in sources()
    }
    wrong = {
        name: length for name, length in lengths.items() if length > LONGEST + (60 if name in LONGER else 0)
    }
    assert not wrong, f"longer than {LONGEST} lines: {wrong}"
    assert lengths.get("app.py", 0) <= 60, "app.py is arguments, load, build, launch"
