"""The documents: their links lead somewhere, their commands and options exist, and their consoles do what they show."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from ropewalk import Admin, Message, Producer
from store.recovery.scan import RULES
from tests.support.documents import (
    DOCUMENTS,
    Command,
    blocks,
    check_shown,
    cli,
    commands,
    program,
    run,
    section,
    text_of,
)
from tests.support.processes import ROOT, checkout_command, checkout_environment, running_broker, stop
from tests.support.waiting import until, until_answered
from tools.documents.requests import meanings
from tools.drill.drills import DRILLS

COLUMNS_MAX = 120
"""Of prose; tables and consoles may be wider."""
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

ELSEWHERE = {
    f"ropewalk/{name}"
    for name in (
        "bound", "checksums/", "config.crc", "deleted", "diverged/", "epochs.json", "replaced/", "role.json", "tails/",
        "dledger/identity", "dledger/peers.json",
        "_rooms/",
    )
}  # fmt: skip
"""Of a store's directory, or of a wheel."""


def prose(document: str) -> str:
    """Return a document without its fenced blocks."""
    return FENCED.sub("", text_of(document))


def anchors(document: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
        found.add(words.replace(" ", "-"))
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    broken = []
    for target in LINK.findall(prose(document)):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        file = (ROOT / document).parent / path if path else ROOT / document
        if not file.exists() or (anchor and anchor not in anchors(os.path.relpath(file, ROOT))):
            broken.append(target)
    assert not broken


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, ahead = set[str](), ["README.md"]
    while ahead:
        document = ahead.pop()
        reached.add(document)
        for target in LINK.findall(prose(document)):
            path = target.partition("#")[0]
            if path.endswith(".md") and "://" not in path:
                found = os.path.relpath(((ROOT / document).parent / path).resolve(), ROOT)
                if found not in reached:
                    ahead.append(found)
    assert sorted(set(DOCUMENTS) - reached) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_and_folders_that_are_named_exist(document: str) -> None:
    rooms = r"(?:ropewalk|store|ha|broker|tools|tests|docs|examples)"
    named = set(re.findall(rf"`({rooms}/[\w./]*[\w/])`", prose(document)))
    assert not {name for name in named - ELSEWHERE if not (ROOT / name).exists() and "NAME" not in name}


@cache
def names_of_tests() -> frozenset[str]:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    return frozenset(
        name for source in sources for name in re.findall(r"^ *(?:async )?def (test_\w+)", source, re.M)
    )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_tests_that_are_named_exist(document: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", prose(document)))
    assert named <= names_of_tests()


def test_each_number_in_the_table_of_strangers_stands_for_tests() -> None:
    text = text_of("docs/operate/hardening.md")
    rows = [row for row in text.splitlines() if row.startswith("|") and row.endswith("| not built yet |")]
    used = {
        int(number)
        for row in rows
        for group in re.findall(r"\(([\d, ]+)\)", row)
        for number in group.split(",")
    }
    listed = {int(number) for number in re.findall(r"^(\d+)\. `test_", text, re.M)}
    assert len(rows) > 10 and used == listed


def spoken(document: str) -> Iterator[list[str]]:
    """Yield the words behind `ropewalk` of each command that a document names, in prose or in a block."""
    text = text_of(document)
    found = re.findall(r"`(?:\.venv/bin/)?ropewalk ([a-z][^`]*)`", FENCED.sub("", text))
    for block in FENCED.findall(text):
        found += re.findall(r"(?:^|[|$ ])(?:\.venv/bin/)ropewalk ([a-z].*)$", block, re.MULTILINE)
        found += re.findall(r"^\$ ropewalk ([a-z].*)$", block, re.MULTILINE)
    for words in found:
        first, *others = re.split(r" \| ?(?=[a-z]+(?: |$))", words) if words in prose(document) else [words]
        yield _words(first)
        for other in others:  # the other members of a group, as in "store verify | info"
            yield [*_words(first)[:-1], *_words(other)]


def _words(text: str) -> list[str]:
    """Return the words of one command, up to where a shell would end it."""
    end = re.search(r"(?:;(?= |$)| [|;>&]| \d?>)", text)
    return [word for word in shlex.split(text[: end.start()] if end else text) if word not in ("…", "...")]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_and_option_that_is_named_exists(document: str) -> None:
    known = cli()
    for words in spoken(document):
        name = ""
        rest = list(words)
        while rest and f"{name} {rest[0]}".strip() in known:
            name = f"{name} {rest.pop(0)}".strip()
        assert name, f"{document} names `ropewalk {' '.join(words)}`"
        is_group = any(other.startswith(f"{name} ") for other in known)
        assert not (is_group and rest and re.fullmatch(r"[a-z-]+", rest[0])), f"{document}: {words}"
        options = {word.partition("=")[0] for word in rest if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", word)}
        missing = options - known[name]
        assert not missing, f"{document}: `ropewalk {name}` has no option {sorted(missing)}"


@pytest.mark.parametrize(
    ("text", "checked"),
    [
        ("`ropewalk consume demo --form earliest`", test_every_command_and_option_that_is_named_exists),
        ("`ropewalk store verify | mend`", test_every_command_and_option_that_is_named_exists),
        (
            "```console\n$ .venv/bin/ropewalk store look DIR\n```\n",
            test_every_command_and_option_that_is_named_exists,
        ),
        ("[here](docs/nowhere.md)", test_every_link_leads_somewhere),
        ("[here](CHANGELOG.md#no-such-heading)", test_every_link_leads_somewhere),
        ("`store/no_such_file.py`", test_files_and_folders_that_are_named_exist),
    ],
)
def test_what_is_wrong_is_noticed(
    text: str, checked: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "text_of", lambda document: text)
    with pytest.raises(AssertionError):
        checked("README.md")


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if not name.startswith("docs/map")])
def test_lines_of_prose_are_short_enough_to_read(document: str) -> None:
    if "<!-- Generated" in text_of(document):
        return
    long = [
        line for line in prose(document).splitlines() if len(line) > COLUMNS_MAX and not line.startswith("|")
    ]
    assert not long


def test_the_page_of_recovery_has_the_rows_of_the_table() -> None:
    words = {True: "yes", False: "no", None: "any"}
    rows = re.findall(
        r"^\| ((?:(?:yes|no|any) \| ){6})(\w+)", text_of("docs/design/recovery.md"), re.MULTILINE
    )
    there = [(*cells.strip("| ").split(" | "), verdict) for cells, verdict in rows]
    verdicts = {"KEEP": "keep", "NEXT_FILE": "go", "LOG_ENDS": "the", "CUT": "cut", "REFUSE": "refuse"}
    # The page has its columns in the order of the table.
    assert there == [(*(words[cell] for cell in row), verdicts[verdict.name]) for *row, verdict in RULES]


def test_the_page_of_drills_names_every_drill() -> None:
    assert {drill.name for drill in DRILLS} <= set(
        re.findall(r"`([\w-]+)`", text_of("docs/operate/drills.md"))
    )


def test_every_request_code_has_a_sentence() -> None:
    texts = meanings()
    assert all(text.endswith(".") and text[0].isupper() for text in texts.values())


def test_documents_name_codes_that_exist() -> None:
    codes = set(meanings())
    for document in DOCUMENTS:
        named = {int(code) for code in re.findall(r"(?<!exit )\bcode (\d+)\b", prose(document))}
        assert named <= codes, document


def test_no_document_shows_python_that_does_not_compile() -> None:
    for document in DOCUMENTS:
        for text in blocks(text_of(document), "python"):
            compile(text, document, "exec")


@pytest.mark.slow
def test_the_page_about_the_care_of_a_store_does_what_it_shows(tmp_path: Path) -> None:
    environment = checkout_environment() | {"ROPEWALK_MAPPED_FILE_SIZE_COMMIT_LOG": "4194304"}
    with running_broker(checkout_command(), cwd=tmp_path, environment=environment) as broker:
        program(tmp_path, f"export NAMESRV_ADDR={broker.namesrv}")
        run(Command("seq 1 20000 | .venv/bin/ropewalk produce orders", ()), tmp_path, environment)
    for command in commands(text_of("docs/operate/store-care.md")):
        check_shown(command, run(command, tmp_path, checkout_environment()))


@pytest.mark.slow
def test_the_page_about_drills_does_what_it_shows(tmp_path: Path, long_run: bool) -> None:
    """Its drill is run in the long run only: tests/tools/drill runs drills every day."""
    program(tmp_path, "")
    shown_there = commands(text_of("docs/operate/drills.md"))
    assert sum(" drill run " in command.words for command in shown_there) == 1
    for command in shown_there:
        if long_run or " drill run " not in command.words:
            check_shown(command, run(command, tmp_path, checkout_environment(), timeout_s=180))
    assert (tmp_path / "page.html").exists() is long_run


CONSUMER = r"""
import sys
from ropewalk import PushConsumer
group, known, begin = sys.argv[1:]
def handle(message):
    if known == "no":
        raise ValueError("no such customer")
    words = message.topic, message.body.decode(), *message.keys, message.tags, message.properties["shop"]
    sys.stdout.write(" ".join(words) + "\n")  # at once: handlers run side by side
    sys.stdout.flush()
PushConsumer(group, {"orders": "*"}, handle, max_retries=0, consume_from=begin).run()
"""


@pytest.mark.slow
def test_the_page_about_dead_letters_does_what_it_shows(tmp_path: Path) -> None:
    """Its group fails until it is mended; another group reads the same topic, and must not see a message twice."""
    page = "docs/operate/dead-letters.md"
    with ExitStack() as stack:
        broker = stack.enter_context(
            running_broker(checkout_command(), cwd=tmp_path, environment=checkout_environment())
        )
        environment = checkout_environment() | {"ROPEWALK_NAMESRV_ADDR": broker.namesrv}
        program(tmp_path, f"export NAMESRV_ADDR={broker.namesrv}")
        errors = stack.enter_context((tmp_path / "consumers-stderr.txt").open("wb"))

        def consumer(group: str, known: str, name: str, begin: str = "earliest") -> subprocess.Popen[bytes]:
            out = stack.enter_context((tmp_path / f"{name}.txt").open("wb"))
            command = [sys.executable, "-c", CONSUMER, group, known, begin]
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=errors)
            stack.callback(stop, process)
            return process

        def handled(name: str) -> list[str]:
            return sorted((tmp_path / f"{name}.txt").read_text().splitlines())

        def show(title: str) -> None:
            for command in commands(section(page, title)):
                check_shown(command, run(command, tmp_path, environment))

        with Admin(broker.namesrv) as admin:

            def settled() -> bool:
                return {one.group: one.lag for one in admin.all_progress()} == {"billing": 0, "reports": 0}

            def told() -> str:
                log = (tmp_path / "consumers-stderr.txt").read_text(errors="replace")[-2000:]
                return f"{handled('mended')} {admin.progress('billing')} {admin.consumers('billing')}\n{log}"

            admin.create_topic("orders", queues=1)
            failing = consumer("billing", "no", "failing")
            consumer("reports", "yes", "reports")
            until_answered(
                lambda: all(admin.consumers(group) is not None for group in ("billing", "reports")),
                "both groups are there",
            )
            with Producer(broker.namesrv) as producer:
                for n in (1, 2, 3):
                    order = f'{{"order": {n}}}'.encode()
                    producer.send("orders", Message(order, [f"o-{n}"], "paid", {"shop": "7"}))
            orders = [f'orders {{"order": {n}}} o-{n} paid 7' for n in (1, 2, 3)]
            until_answered(lambda: admin.dead_letters() == {"billing": 3}, "all are dead letters")
            until(lambda: handled("reports") == orders, "the other group has them")
            until_answered(settled, "both groups have committed how far they are")
            show("See them")
            show("Find out why")
            stop(failing)
            show("Replay")
            consumer("billing", "yes", "mended", "latest")
            until(lambda: handled("mended") == orders, told, patience_s=60)
            until_answered(settled, "its progress is committed")
            show("Give up")
            assert handled("reports") == orders, "nobody else got what was replayed"
