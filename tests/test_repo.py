"""What a stranger finds in the checkout: a licence, a changelog, docstrings, and nothing left lying about."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import ropewalk
from ropewalk.__main__ import refusal, rooms_folder
from tools import check
from tools.check import Step, environment_of_steps, plan, run

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("ropewalk", "store", "ha", "broker", "tools")


def repository_files() -> list[Path]:
    """Every text file that git tracks or would track, this one excepted: it has to spell what it bans."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file() and path != Path(__file__).resolve()]


def text_of(path: Path) -> str:
    """The file's text; an empty one for a binary file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def modules() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def test_the_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["license"] == "Apache-2.0"


def test_the_changelog_starts_with_what_is_unreleased_or_current() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings and (headings[0] == "Unreleased" or ropewalk.__version__ in headings[0])


def test_a_version_with_unreleased_work_is_no_released_one() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    released = [tuple(map(int, each.split()[0].split("."))) for each in headings if each != "Unreleased"]
    base, _, suffix = ropewalk.__version__.partition(".dev")
    if headings[0] == "Unreleased":
        assert suffix == "0", f"{ropewalk.__version__} is, or looks like, a release that lacks what is new"
        assert tuple(map(int, base.split("."))) > max(released)
    else:
        assert ropewalk.__version__ == base and released[0] == max(released)


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_module_opens_with_its_law(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), "no module docstring"


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in modules()}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_types_are_shipped() -> None:
    assert (ROOT / "ropewalk" / "py.typed").exists()


def test_nothing_names_the_machine_it_was_written_on() -> None:
    # Taken from the running process, so that this file names none either.
    places = [place for place in (ROOT, Path.home()) if len(place.parts) > 1]
    patterns = [re.compile(rf"(?<![\w.>}}]){re.escape(str(place))}(?=[/\"'\s`]|$)") for place in places]
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in repository_files()
        for pattern in patterns
        for match in pattern.finditer(text_of(path))
    ]
    assert not found, "\n".join(found)


def test_no_work_is_left_marked_in_the_source() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|(?<![\x22\w])for now\b(?!\x22)|NotImplementedError\(\)")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in repository_files()
        if path.suffix in (".py", ".md", ".toml", ".java", ".sh") or path.name == "Makefile"
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if marks.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_readme_starts_with_the_two_commands() -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert [block.strip().removeprefix("$ ") for block in blocks[:2]] == ["make run", "make test"]


def test_continuous_integration_runs_what_a_person_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111, ".ci/run is not executable"
    assert "set -euo pipefail" in script.read_text() and "make test" in script.read_text()


def test_no_property_fails_because_the_machine_is_busy() -> None:
    for profile in (settings.get_profile("quick"), settings.get_profile("long")):
        assert profile.deadline is None and HealthCheck.too_slow in profile.suppress_health_check


def test_the_check_ends_with_the_tests() -> None:
    assert [step.name for step in plan()] == ["format", "lint", "types", "tests"]
    assert plan()[-1].arguments == ("-n", "6")
    assert [step.name for step in plan() if step.beside] == ["types"]
    chosen = plan(pytest_arguments=["-x"])
    assert chosen[-1].arguments == ("-x",), "a plain pytest, fit for a debugger"
    assert not any(step.beside for step in chosen)
    assert not any("--check" in step.arguments for step in plan(fix=True))


def test_the_check_stops_at_the_first_step_that_fails(capfd: pytest.CaptureFixture[str]) -> None:
    steps = (Step("first", "platform"), Step("second", "no_such_module"), Step("third", "this"))
    assert run(steps, os.environ) == 1
    told = capfd.readouterr().out
    assert re.search(r"^first +\d+\.\d s +ok$", told, re.MULTILINE)
    assert told.rstrip().endswith("FAILED") and "Zen of Python" not in told


def test_the_check_says_nothing_after_the_last_step_and_passes_its_status_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run((Step("first", "platform"), Step("tests", "no_such_module")), os.environ) == 1
    assert capfd.readouterr().out.rstrip().endswith("ok")
    assert run((Step("tests", "this"),), os.environ) == 0
    assert capfd.readouterr().out.endswith("let's do more of those!\n")


def test_types_are_told_beside_the_tests_and_the_tests_have_the_last_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("-n1", "-r1", "-s", f"import os, time; path = {str(tmp_path / 'types')!r}")
    types = Step("types", "timeit", (*names, "os.symlink(f'/proc/{os.getpid()}', path)"), beside=True)
    # A link to a process leads nowhere when that has ended, and this one has been told so.
    waits = ("while not os.path.lexists(path) or os.path.exists(path): time.sleep(0.05)", "time.sleep(2)")
    assert run((types, Step("tests", "timeit", (*names, *waits))), os.environ) == 0
    told = capfd.readouterr().out
    assert re.search(r"^types +\d+\.\d s +ok$", told, re.MULTILINE) and "loop" in told.splitlines()[-1]
    slow = Step("types", "timeit", ("-n1", "-r1", "import time; time.sleep(4)"), beside=True)
    assert run((slow, Step("tests", "this")), os.environ) == 0
    assert capfd.readouterr().out.endswith("let's do more of those!\n"), "types that end later say nothing"


@pytest.mark.parametrize("listens", ["SIG_DFL", "SIG_IGN"])
def test_wrong_types_stop_the_tests_beside_them(
    listens: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_STOP_S", 0.5)
    words = f"import signal, time; signal.signal(signal.SIGINT, signal.{listens}); time.sleep(600)"
    goes_on = Step("tests", "timeit", ("-n1", "-r1", words))
    assert run((Step("types", "no_such_module", beside=True), goes_on), os.environ) == 1
    *_, said, line = capfd.readouterr().out.splitlines()
    assert "No module named no_such_module" in said and line.startswith("types") and line.endswith("FAILED")


def test_wrong_types_are_told_though_the_tests_have_ended(capfd: pytest.CaptureFixture[str]) -> None:
    late = ("-n1", "-r1", "import time; time.sleep(1.5); raise SystemExit")
    assert run((Step("types", "timeit", late, beside=True), Step("tests", "this")), os.environ) == 1
    assert capfd.readouterr().out.rstrip().endswith("FAILED")
    assert run((Step("types", "platform", beside=True), Step("tests", "no_such_module")), os.environ) == 1


def test_the_check_keeps_bytecode_whatever_the_caller_wants(tmp_path: Path) -> None:
    caller = {"PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": "/cache", "LANG": "C"}
    assert environment_of_steps(caller, root=tmp_path) == {"XDG_CACHE_HOME": "/cache", "LANG": "C"}
    kept = environment_of_steps(caller, root=tmp_path / "nowhere to write", long=True)
    assert kept["PYTHONPYCACHEPREFIX"] == "/cache/ropewalk/bytecode" and kept["ROPEWALK_LONG"] == "1"


@pytest.mark.parametrize(
    ("arguments", "optimized", "platform", "refused"),
    [
        (["broker"], True, "linux", True),
        (["broker", "-c", "file"], True, "linux", True),
        (["namesrv"], True, "linux", True),
        (["broker"], False, "linux", False),
        (["broker"], False, "darwin", True),
        (["broker", "--help"], True, "darwin", False),
        (["produce", "broker", "hello"], True, "darwin", False),
        (["--version"], True, "linux", False),
        ([], True, "linux", False),
    ],
)
def test_only_a_server_refuses_an_interpreter_it_cannot_trust(
    arguments: list[str], optimized: bool, platform: str, refused: bool
) -> None:
    assert (refusal(arguments, optimized=optimized, platform=platform) is not None) is refused


def test_a_broker_under_python_o_ends_with_the_reason() -> None:
    command = [sys.executable, "-O", "-m", "ropewalk", "broker"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == 1
    assert "python -O" in ended.stderr and "assertions" in ended.stderr


def test_a_command_looks_for_no_garbage_while_it_starts_and_when_it_ends() -> None:
    code = """
import atexit, gc, sys
collections = []
gc.callbacks.append(lambda phase, info: collections.append(phase))
atexit.register(lambda: print(len(collections), gc.get_freeze_count() > 50_000, file=sys.stderr))
gc.set_threshold(0)
from ropewalk.__main__ import main
sys.argv[1:] = ["broker", "--print-config"]
main()
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert ended.stderr.split() == ["0", "True"] and ended.returncode == 0, ended.stderr


def test_the_rooms_are_found_in_a_checkout_and_inside_an_installed_package(tmp_path: Path) -> None:
    package = tmp_path / "ropewalk"
    package.mkdir()
    assert rooms_folder(package) == tmp_path
    (package / "_rooms").mkdir()
    assert rooms_folder(package) == package / "_rooms"


def test_nothing_is_raised_within_a_clause_that_takes_a_group_apart() -> None:
    """Python 3.11.2, which is Debian 12's, makes a group of it again; later ones do not."""
    found = [
        f"{path.relative_to(ROOT)}:{raised.lineno}"
        for path in repository_files()
        if path.suffix == ".py"
        for clause in ast.walk(ast.parse(text_of(path)))
        if isinstance(clause, ast.TryStar)
        for handler in clause.handlers
        for raised in ast.walk(handler)
        if isinstance(raised, ast.Raise)
    ]
    assert not found, "\n".join(found)


OPENERS = re.compile(
    r"(?:What|Who|Whose|Where|How|Whether|It|Its|They|Their|One|Some|Somebody|Nobody|Everybody|Anybody|Those|These"
    r"|The same|This|That|Says|Asks|Tells)\b"
)
PRONOUNS = re.compile(r"\b(?:who|what|whatever|whoever|somebody|nobody|one of them|some of them)\b", re.I)
"""Words in the place of a noun, which a first sentence does without."""
FIRST_SENTENCE = re.compile(r"(?<!e\.g)(?<!i\.e)[.:](?=\s|$)")


def public_docstrings(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and first sentence of every public docstring of a module, its own first."""

    def walk(owner: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[int, str, str]]:
        for node in owner.body:
            if (
                isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name[0] != "_"
            ):
                if text := ast.get_docstring(node):
                    yield node.body[0].lineno, prefix + node.name, first_sentence(text)
                if isinstance(node, ast.ClassDef):
                    yield from walk(node, f"{prefix}{node.name}.")

    tree = ast.parse(source)
    if text := ast.get_docstring(tree):
        yield 1, "the module", first_sentence(text)
    yield from walk(tree, "")


def first_sentence(text: str) -> str:
    return FIRST_SENTENCE.split(" ".join(text.split("\n\n", 1)[0].split()), maxsplit=1)[0]


def riddle(sentence: str) -> str | None:
    """Return the word that makes a riddle of a first sentence: an opener that is no verb or noun, or a pronoun."""
    found = OPENERS.match(sentence) or PRONOUNS.search(sentence)
    return found.group() if found else None


def test_first_sentences_say_what_is_meant_in_nouns() -> None:
    """A verb and a standard noun, or a noun phrase: the naming rule of CONTRIBUTING.md."""
    found = [
        f'{path.relative_to(ROOT).as_posix()}:{line}: {owner}: "{word}" in: {sentence}'
        for path in modules()
        for line, owner, sentence in public_docstrings(path.read_text(encoding="utf-8"))
        if (word := riddle(sentence))
    ]
    assert not found, f"{len(found)} riddles\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("sentence", "word"),
    [
        ("Return the offset behind the last record.", None),
        ("An append-only column store of queue entries", None),
        ("Somehow return the offset", None),
        ("Oneway requests are counted apart", None),
        ("Some of them, which become more and never others.", "Some"),
        ("What became of the code of them all", "What"),
        ("The same again", "The same"),
        ("Return what somebody asked for", "what"),
        ("Tell the client who asked", "who"),
        ("Whether another machine is waited for", "Whether"),
    ],
)
def test_a_riddle_is_known_by_its_words(sentence: str, word: str | None) -> None:
    assert riddle(sentence) == word


def test_private_names_and_later_sentences_are_left_alone() -> None:
    source = (
        '"""A module. What follows is free."""\n'
        "class Log:\n"
        '    """A log.\n\n    Whose it is stands below."""\n'
        "    def append(self):\n"
        '        """Append a record: what it is, is known."""\n'
        "    def _look(self):\n"
        '        """What nobody sees."""\n'
    )
    found = list(public_docstrings(source))
    assert [(line, name) for line, name, _ in found] == [(1, "the module"), (3, "Log"), (7, "Log.append")]
    assert [riddle(sentence) for _, _, sentence in found] == [None, None, None]
