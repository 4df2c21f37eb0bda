"""The documentation keeps up with the program: subcommands, flags, settings, exit codes, JSON, files."""

from __future__ import annotations

import argparse
import dataclasses
import html
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards import __version__, errors
from fineweb_shards.commands.main import SUBCOMMANDS, make_parsers
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.run.config import Config
from fineweb_shards.run.config_sources import load_config
from fineweb_shards.tokenizers import ENGINES
from tests.support import inline, runs

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fineweb_shards"
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(page.read_text() for page in PAGES)
FIXED_OTHERWISE = {
    "parts": "by content",
    "input": "by content",
    "val_input": "by content",
    "max_tokens": "may grow",
}  # settings that are fixed in a way of their own


def subcommands() -> dict[str, argparse.ArgumentParser]:
    return dict(make_parsers(SUBCOMMANDS)[1])


def flags() -> set[str]:
    return {
        option
        for parser in [make_parsers(())[0], *subcommands().values()]
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and not option.startswith("--no-")
    }


def section(text: str, heading: str) -> str:
    """What is below a heading, up to the next one of its level or above."""
    level = len(heading.split()[0])
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{level}}} |\Z)", text, re.M | re.S)
    assert found, f"there is no heading {heading!r}"
    return found[1]


def setting_row(name: str) -> list[str]:
    """The cells of a setting's row in the reference."""
    (row,) = [line for line in REFERENCE.splitlines() if line.startswith(f"| `{name}` | `--")]
    return [cell.strip() for cell in row.strip("|").split("|")]


def packages() -> set[str]:
    return {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def tree_lines() -> list[str]:
    return [line for line in section(CONTRIBUTING, "## Files").splitlines() if line.startswith("    ")]


# What is in the reference.


@pytest.mark.parametrize("subcommand", sorted(subcommands()))
def test_every_subcommand_is_documented(subcommand: str) -> None:
    """In the reference's table."""
    assert f"| `fineweb-shards {subcommand} " in section(REFERENCE, "## Subcommands")


@pytest.mark.parametrize("flag", sorted(flags()))
def test_every_flag_is_documented(flag: str) -> None:
    """In the reference."""
    assert re.search(rf"`{flag}\b", section(REFERENCE, "## Settings and flags"))


def test_no_documented_flag_is_missing() -> None:
    """Nothing is promised that the command does not have."""
    sections = re.findall(r"fineweb-shards [^\n`]*", TEXT)
    promised = {flag for line in sections for flag in re.findall(r"(?<!\S)--[a-z][a-z-]+", line)}
    assert promised <= flags() | {"--no-verify"}


@pytest.mark.parametrize("field", dataclasses.fields(Config), ids=lambda field: field.name)
def test_every_setting_is_documented(field: dataclasses.Field[Any]) -> None:
    """As a key, next to its flag, with its choices and whether it is fixed once shards are made."""
    cells = setting_row(field.name)
    assert cells[1] == f"`{field.metadata['flag'] or '--' + field.name.replace('_', '-')}`"
    assert cells[3] == FIXED_OTHERWISE.get(field.name, "yes" if field.metadata["bytes"] else "")
    for choice in field.metadata["choices"]:
        assert choice in cells[2] + cells[4]


@pytest.mark.parametrize(("name", "known"), [("layout", LAYOUTS), ("engine", ENGINES)])
def test_every_layout_and_engine_is_documented(name: str, known: dict[str, Any]) -> None:
    """In the row of its setting; a layout also in the README, and in the table of docs/layouts.md."""
    words = re.split(r"[^\w.-]+", setting_row(name)[4])
    assert set(known) <= set(words)
    if name == "layout":
        assert set(known) <= set(re.findall(r"`(?:--layout )?([\w.-]+)[` ]", section(README, "## Train on it")))
        table = (ROOT / "docs" / "layouts.md").read_text()
        assert set(re.findall(r"^\| `([\w.-]+)` \| `.*(?:before|after)", table, re.M)) == set(known)


@pytest.mark.parametrize("target", re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M))
def test_every_make_target_is_documented(target: str) -> None:
    """In the reference."""
    assert f"`make {target}`" in section(REFERENCE, "## Make targets")


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.stem)
def test_every_sample_is_valid_and_documented(path: Path) -> None:
    """It loads, and the reference names it."""
    load_config(path, {}).check()
    assert f"`{path.stem}`" in section(REFERENCE, "## Subcommands")
    assert tomllib.loads(path.read_text())


def test_every_exit_code_is_documented() -> None:
    """In one table."""
    table = section(REFERENCE, "## Exit codes")
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.ShardError):
            assert re.search(rf"^\| (\d+, )*{kind.exit_code}(, \d+)* \|", table, re.M), kind


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A finished folder, and what `build --json` said on the way."""
    folder = tmp_path_factory.mktemp("docs")
    settings = ["--separator", "blank", "--shard-tokens", "100M"]
    words = runs.command("build", "-", *settings, "--json", "--out", folder / "out")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("one word\n\nanother word\n" + "x" * 70_000)
        process.stdin.flush()
        lines = []
        for line in process.stdout:
            lines.append(line)
            if json.loads(line)["event"] == "progress":  # only then the input ends, and the run
                process.stdin.close()
    assert process.returncode == 0
    return folder / "out", [json.loads(line) for line in lines]


def ask(*words: Path | str) -> dict[str, Any]:
    done = runs.run_command(*words, "--json")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[0] if "--grep" in words else done.stdout)
    return answer


def keys_in(value: Any, *, without: tuple[str, ...] = ()) -> Iterator[str]:
    """All keys of an object and of the objects in it, apart from what is in `without`."""
    if isinstance(value, list):
        for one in value:
            yield from keys_in(one, without=without)
    if isinstance(value, dict):
        for key, one in value.items():
            yield key
            if key not in without:
                yield from keys_in(one, without=without)


def missing_in(heading: str, keys: Iterator[str]) -> set[str]:
    text = section(REFERENCE, heading)
    return {key for key in keys if f"`{key}`" not in text}


def test_every_key_of_build_json_is_documented(built: tuple[Path, list[dict[str, Any]]]) -> None:
    """Of all objects of a real run, and those of an error."""
    _, objects = built
    assert {"message", "progress", "result"} == {value["event"] for value in objects}
    assert not missing_in("### `build --json`", keys_in(objects))
    assert not missing_in("### `build --json`", iter(["error", "exit_code", "count"]))


def test_every_key_of_status_json_is_documented(built: tuple[Path, list[dict[str, Any]]]) -> None:
    """The snapshot's are those of `progress`."""
    status = ask("status", built[0])
    assert not missing_in("### `status --json`", keys_in(status, without=("snapshot",)))
    assert not missing_in("### `build --json`", keys_in(status["heartbeat"]["snapshot"]))


def test_every_key_of_inspect_json_is_documented(built: tuple[Path, list[dict[str, Any]]]) -> None:
    """Of the figures, a document and a match."""
    folder = built[0]
    for words in ([], ["--document", "0"], ["--grep", "word"]):
        assert not missing_in("### `inspect --json`", keys_in(ask("inspect", folder, *words)))


def test_every_field_and_file_of_a_folder_is_documented(built: tuple[Path, list[dict[str, Any]]]) -> None:
    """The manifest's fields, and every file that a run leaves in `.fineweb-shards`."""
    folder = built[0]
    manifest = json.loads((folder / "manifest.json").read_text())
    closed = ("settings", "versions", "totals", "counts")  # settings and counts have tables of their own
    heading = "## Files in the output folder"
    assert not missing_in(heading, keys_in(manifest, without=closed))
    files = [path.name for path in (folder / ".fineweb-shards").iterdir()]
    assert not missing_in(heading, iter(f".fineweb-shards/{name}" for name in files))


# The README, and the tree in CONTRIBUTING.


def test_the_readme_is_short() -> None:
    """People read it to the end."""
    assert 100 <= len(README.splitlines()) <= 120


def test_the_readme_promises_what_was_measured() -> None:
    """The ratios in its sentence are those of the last `make bench` as well."""
    results = (ROOT / "benchmarks" / "results.md").read_text()
    measured = re.findall(r"speed: (?:parquet|tiktoken) / fineweb.py's loop \| ([\d.]+)×", results)
    promise = README.partition("- **Fast.**")[2].partition("\n\n")[0]
    assert re.findall(r"([\d.]+)\s+times", promise) == [f"{float(ratio):.2g}" for ratio in measured]


def test_the_picture_shows_what_was_measured() -> None:
    """Each bar has a speed of the last `make bench`, and the programs that we compare with have one."""
    results = (ROOT / "benchmarks" / "results.md").read_text()
    picture = html.unescape((ROOT / "docs" / "speed.svg").read_text())
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([\d.]+) \| [\d.]+ \|", results, re.M))
    bars = dict(re.findall(r">([^<>]+)</text><rect .*>([\d.]+)</text>$", picture, re.M))
    assert bars.items() <= rows.items()
    assert {"fineweb.py's loop", "bare loop, a process for each core", "fineweb-shards, parquet"} <= set(bars)


def test_every_file_at_the_top_is_in_the_tree() -> None:
    """Of the package, apart from those that only Python itself looks for."""
    listed = re.findall(r"\w+\.py", "\n".join(tree_lines()))
    assert {path.name for path in PACKAGE.glob("[!_]*.py")} <= set(listed)


def test_every_package_is_in_the_tree() -> None:
    """CONTRIBUTING's tree has the packages that exist, and no others."""
    found = [match[1] for line in tree_lines() if (match := re.match(r" {8}(\w+)/ ", line))]
    assert set(found) == packages()


def test_every_name_in_the_tree_exists() -> None:
    """Folders at the top, packages and files, and what a note says is in a folder."""
    missing = []
    for line in tree_lines():
        base = PACKAGE if line.startswith(" " * 8) else ROOT
        first, *others = re.findall(r"[\w-]+/(?=\s|$)|\w+\.(?:py|md)\b", line)
        inside = base / first if first.endswith("/") else base
        missing += [first] * (not (base / first).exists())
        missing += [name for name in others if not any((place / name).exists() for place in (inside, base))]
    assert not missing


# All pages.


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"], ids=lambda page: page.name)
def test_prose_is_wrapped(page: Path) -> None:
    """At 120 characters, except tables, and lines that are a single link or code span."""
    lines = enumerate(page.read_text().splitlines(), start=1)
    long = {number: line for number, line in lines if len(line) > 120 and not line.lstrip(" >").startswith("|")}
    assert not {number for number, line in long.items() if not line.startswith("    ") and " " in line.strip()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """To a file that is there, and to a heading that it has."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.is_file(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
            assert anchor in map(anchor_of, headings), target


def anchor_of(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page: Path) -> None:
    """`package/file.py`, in a text or in a picture; from the package, the top, or beside the page."""
    pattern = r"(?<![\w/.-])((?:[\w-]+/)+[\w-]+\.(?:py|md|toml))\b"
    named = {name for name in re.findall(pattern, page.read_text()) if "yours" not in name}
    bases = (ROOT, PACKAGE, page.parent)
    missing = {name for name in named if not any((base / name).is_file() for base in bases)}
    assert not {name for name in missing if not is_an_example(name)}


def is_an_example(name: str) -> bool:
    """`configs/name.toml` stands for any of them."""
    return name == "configs/name.toml"


def documented_commands() -> list[str]:
    """What stands in code blocks and can be pasted, from `fineweb-shards` on."""
    pattern = r"^ {4}(?:[^\n]*(?:\.venv/bin/|\$ |\| ))?fineweb-shards (\w(?:'[^'\n]*'|[^\n|>])*)"
    return sorted(set(re.findall(pattern, TEXT.replace("\\\n", " "), re.M)))


@pytest.mark.parametrize("command", documented_commands())
def test_every_command_can_be_parsed(command: str) -> None:
    """With the program's own parser."""
    subcommand, *words = shlex.split(command, comments=True)
    subcommands()[subcommand].parse_args(words)


def test_every_sample_is_named() -> None:
    """The reference lists the files of `configs/`, and no others."""
    listed = re.findall(
        r"`([\w-]+)`", section(REFERENCE, "## Subcommands").partition("The **samples** are")[2].partition("They")[0]
    )
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "configs").glob("*.toml"))


def test_the_wheel_holds_the_ranks_and_the_samples() -> None:
    """What is installed has the vocabulary and its notice, and the configs from the top of the project."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert data["tool"]["setuptools"]["package-dir"] == {"fineweb_shards.configs": "configs"}
    assert data["tool"]["setuptools"]["package-data"]["fineweb_shards.configs"] == ["*.toml"]
    assert set(data["tool"]["setuptools"]["package-data"]["fineweb_shards.tokenizers"]) == {
        "gpt2.tiktoken",
        "NOTICE.md",
    }
    packages = {
        str(path.parent.relative_to(ROOT)).replace("/", ".") for path in ROOT.glob("fineweb_shards/**/__init__.py")
    }
    assert set(data["tool"]["setuptools"]["packages"]) == packages | {"fineweb_shards.configs"}


def test_the_changelog_has_this_version() -> None:
    """Each release has a dated section, the newest first; only what is not released may come before it."""
    sections = re.findall(r"^## \[(.+?)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    released = [(version, date) for version, date in sections if version != "Unreleased"]
    assert released[0][0] == __version__
    assert all(re.fullmatch(r" - 20\d\d-\d\d-\d\d", date) for _, date in released)


def test_the_lock_file_names_no_host() -> None:
    """Every package has one exact version and its hashes, and none is tied to an index."""
    lock = (ROOT / "requirements-dev.lock").read_text()
    assert not re.search(r"://|--(?:index|extra-index|find-links|trusted-host)|\bfile:|\bgit\+", lock)
    entries = re.findall(r"^\w\S*==.*\\$(?=\n    --hash=sha256:[0-9a-f]{64})", lock, re.M)
    assert entries == [line for line in lock.splitlines() if not line.startswith((" ", "#"))]


def test_the_lock_file_has_every_dependency() -> None:
    """Of the package and of [dev], with the extras that it includes: `make lock` is up to date."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[^\w.-]", name)[0] for name in project["dependencies"]}
    wanted = ["dev"]
    for extra in wanted:
        for requirement in project["optional-dependencies"][extra]:
            name, *extras = re.split(r"[\[\],]", requirement.partition(">")[0])
            if name == "fineweb_shards":
                wanted += filter(None, extras)
            else:
                declared.add(name)
    locked = re.findall(r"^([\w.-]+)==", (ROOT / "requirements-dev.lock").read_text(), re.M)
    assert {name.lower().replace("_", "-") for name in declared} <= set(locked)


def test_every_row_of_the_plan_is_documented(tmp_path: Path) -> None:
    """In the order in which it is shown; one row depends on how busy the machine is."""
    shown = inline.run_command("plan", "demo", "--out", tmp_path / "out").stdout.splitlines()
    example = section(REFERENCE, "### What `plan` shows").partition("$ make plan\n")[2].partition("\n\n")[0]
    rows = [[line[:10].strip() for line in lines] for lines in (shown, [row[4:] for row in example.split("\n")])]
    assert [row for row in rows[0] if row != "priority"] == rows[1]
