"""The README's promises that a machine can check: its two commands, its links, its arguments."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def command(name: str) -> str:
    found = re.search(rf"<!-- {name}-command -->\n```bash\n(.+)\n```\n<!-- end -->", README)
    assert found, f"the README has no {name} command"
    return found.group(1)


def test_both_commands_are_one_line_and_install_what_they_need() -> None:
    assert command("start").endswith("app.py")
    assert "-r requirements.txt" in command("start")
    assert command("test").endswith("-m pytest")
    assert "-r tests/requirements.txt" in command("test")


def test_ci_runs_exactly_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    extract = next(line for line in script.splitlines() if line.startswith("command="))
    printed = subprocess.run(
        ["bash", "-c", f'{extract}; printf %s "$command"'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == command("test")
    assert 'eval "$command"' in script


def test_every_file_the_readme_points_to_exists() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def help_of(*command: str) -> str:
    return subprocess.run(
        [sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def test_every_argument_in_the_readme_is_one_of_the_program() -> None:
    commands = ("generate", "selfcheck", "bench", "distil", "tune", "doctor", "proof", "replay")
    helps = help_of("app.py") + "".join(help_of("-m", "specchat", name) for name in commands)
    rest = re.sub(r"<!-- .*?<!-- end -->", "", README, flags=re.DOTALL)
    for argument in set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", rest)):
        assert argument in helps, argument


def test_every_requirement_is_pinned() -> None:
    for name in ("requirements.txt", "tests/requirements.txt"):
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                assert re.match(r"[a-z_-]+==[\d.]+(\s|$)", line), line


def test_the_top_level_holds_only_what_was_agreed() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True
    ).stdout.splitlines()
    top = {name.split("/")[0] for name in tracked}
    allowed = {
        "app.py",
        "specchat",
        "assets",
        "tests",
        "requirements.txt",
        "README.md",
        "pyproject.toml",
        "LICENSE",
    }
    assert {name for name in top if not name.startswith(".")} <= allowed
