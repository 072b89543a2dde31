"""Wheels of this checkout, and environments in which one is the only thing installed. Nothing needs a network."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution, requires
from pathlib import Path

from packaging.requirements import Requirement


def run_command(*command: str | Path, cwd: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command that must succeed; return its standard output."""
    words = [str(word) for word in command]
    ended = subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, f"{' '.join(words)}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def plain_environment() -> dict[str, str]:
    """Return the environment of the tests without the variables that could lead Python to the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def build_wheel(project: Path, folder: Path) -> Path:
    """Build the wheel of the `pyproject.toml` in a folder of the checkout."""
    run_command(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=project)
    (built,) = folder.glob("*.whl")
    return built


def install_alone(wheel: Path, home: Path) -> Path:
    """Make an environment that has this wheel and nothing else; return its site-packages."""
    venv.create(home, with_pip=False, symlinks=True)
    folder = Path(sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)}))
    assert not list(folder.iterdir())
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", home / "bin" / "python")
    run_command(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    return folder


def lend(site_packages: Path, requirements: Iterable[str]) -> set[str]:
    """Lend an environment these distributions of the tests' own, and all that they depend on; return their names."""
    lent: set[str] = set()
    waiting = list(requirements)
    while waiting:
        requirement = Requirement(waiting.pop())
        name = requirement.name.lower()
        if name in lent or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        lent.add(name)
        waiting += requires(name) or []
        for top in _tops(distribution(name)):
            (site_packages / top.name).symlink_to(top)
    return lent


def _tops(found: Distribution) -> set[Path]:
    """Return the files and folders that a distribution has in site-packages itself."""
    names = {file.parts[0] for file in found.files or () if ".." not in file.parts}
    return {Path(str(found.locate_file(name))) for name in names if name != "__pycache__"}
