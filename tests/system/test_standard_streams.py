"""Output that is full, closed, broken or can't show a character: the work goes on, without a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fineweb_shards.errors import OutputError, ReaderGone
from fineweb_shards.system import standard_streams as streams
from tests.support import reference, runs
from tests.support.inputs import write_text

TEXTS = ["größer – naïve 没有 …", "two", "three words here"]
FULL = Path("/dev/full")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("source") / "größe – 没.txt", TEXTS)


def shell(redirections: str, *words: Path | str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command with redirections as a shell understands them."""
    script = f'exec "$@" {redirections}'
    return subprocess.run(
        ["/bin/sh", "-c", script, "sh", *runs.command(*words)],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=600, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


def assert_built(out: Path) -> None:
    assert runs.shards_in(out) == reference.shard_files(reference.stream(TEXTS), 10)
    assert json.loads((out / "manifest.json").read_text())["complete"]


BUILD = ("--shard-tokens", "10", "--workers", "1", "--separator", "<|endoftext|>")


@pytest.mark.full
@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    ("redirections", "flags"),
    [(">/dev/full", ["--json"]), (">/dev/full 2>/dev/full", []), (">&- 2>&- <&-", []), (">&- 2>/dev/full", ["--json"])],
)
def test_a_build_goes_on_when_nobody_can_be_told(
    tmp_path: Path, source: Path, redirections: str, flags: list[str]
) -> None:
    """Full or closed streams: all shards, exit code 0, no traceback where there is still a place for one."""
    out = tmp_path / "out"
    done = shell(redirections, "build", "--input", source, "--out", out, *BUILD, *flags)
    assert b"Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    assert_built(out)


@pytest.mark.full
@pytest.mark.parametrize("flags", [["--json"], []])
def test_who_looks_on_may_leave(tmp_path: Path, source: Path, flags: list[str]) -> None:
    """`build --json | head -1`: the build goes on to its end, and its exit code is its own."""
    out = tmp_path / "out"
    reader, writer = os.pipe()
    os.close(reader)
    words = runs.command("build", "--input", source, "--out", out, *BUILD, *flags)
    done = subprocess.run(words, stdout=writer, stderr=writer, timeout=600, check=False)
    os.close(writer)
    assert done.returncode == 0
    assert_built(out)
    log = (out / ".fineweb-shards" / "log.txt").read_text("utf-8")
    assert "complete: " in log.splitlines()[-1]


@pytest.mark.full
@pytest.mark.parametrize("verb", ["status", "inspect", "plan"])
def test_verbs_that_only_print_end_with_their_reader(tmp_path: Path, source: Path, verb: str) -> None:
    """Like any other program in a pipe: silently, with exit code 141; a full disk is told."""
    out = tmp_path / "out"
    runs.build_inline(out, source, shard_tokens=10, separator="<|endoftext|>")
    words = [verb, out] if verb != "plan" else [verb, "--input", source, "--out", out]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(runs.command(*words), stdout=writer, stderr=subprocess.PIPE, timeout=600, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
    if FULL.exists():
        full = shell(">/dev/full", *words)
        assert full.returncode == 5
        assert full.stderr.startswith(b"fineweb-shards: standard output can't be written: No space left")


@pytest.mark.full
@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=["ascii", "C"],
)
def test_what_cannot_be_shown_is_escaped(tmp_path: Path, source: Path, environment: dict[str, str]) -> None:
    """In a terminal that is not UTF-8 every verb says what it has to say, and the shards are the same."""
    out = tmp_path / "aus"
    if "PYTHONIOENCODING" in environment:
        out = tmp_path / "aus – 没"
    else:  # where not even file names are UTF-8
        source = write_text(tmp_path / "a.txt", TEXTS)
    said = b""
    verbs: list[list[Path | str]] = [
        ["build", "--input", source, "--out", out, *BUILD],
        ["inspect", out, "--document", "0"],
        ["build", "--input", tmp_path / "no – ü", "--out", out],
        ["plan", "--input", source, "--out", out, *BUILD],
        ["status", out],
        ["inspect", out, "--grep", "naïve"],
        ["verify", out],
        ["report", out],
    ]
    for words in verbs if "PYTHONIOENCODING" in environment else verbs[:3]:
        done = shell("", *words, **environment)
        assert b"Traceback" not in done.stderr, done.stderr
        assert done.returncode in (0, 3), done.stderr
        said += done.stdout + done.stderr
    assert_built(out)
    assert said.isascii()
    assert rb"gr\xf6\xdfer - na\xefve \u6ca1" in said


class TestSink:
    """Without a process."""

    def test_a_tolerant_sink_drops_what_it_cannot_write(self) -> None:
        """And counts it as written."""
        reader, writer = os.pipe()
        os.close(reader)
        text = streams.open_text(streams.Sink(writer, strict=False), "utf-8", line_buffering=True)
        print("nobody hears this", file=text)
        os.close(writer)

    def test_a_strict_sink_says_so_once(self) -> None:
        """What comes after it, a flush at the end included, is silent."""
        reader, writer = os.pipe()
        os.close(reader)
        text = streams.open_text(streams.Sink(writer, strict=True), "utf-8", line_buffering=True)
        with pytest.raises(ReaderGone):
            print("nobody hears this", file=text)
        print("nor this", file=text)
        text.flush()
        os.close(writer)

    @pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
    def test_a_full_disk_is_an_error_of_the_output(self) -> None:
        """For verbs that only print."""
        full = os.open(FULL, os.O_WRONLY)
        with pytest.raises(OutputError, match="No space left"):
            streams.Sink(full, strict=True).write(b"text")
        os.close(full)

    def test_a_reader_that_does_not_read_is_waited_for_unless_there_is_a_hurry(self) -> None:
        """After a signal the run must end, whoever does not read."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)  # as some parents leave it; it changes nothing
        sink = streams.Sink(writer, strict=False)
        sink.longest_wait_seconds = 0.01
        data = b"x" * 10**6
        assert sink.write(data) == len(data)
        assert len(os.read(reader, 10**6)) < len(data)
        os.close(reader)
        os.close(writer)

    def test_our_own_marks_keep_their_width(self) -> None:
        """Bars are measured in characters."""
        reader, writer = os.pipe()
        text = streams.open_text(streams.Sink(writer, strict=True), "ascii", line_buffering=True)
        print("cut…·é没", file=text)
        assert os.read(reader, 100) == b"cut..\\xe9\\u6ca1\n"
        os.close(reader)
        os.close(writer)


def test_closed_descriptors_are_not_taken_by_files(tmp_path: Path) -> None:
    """Or a child's last words would end in a shard."""
    code = (
        "import os; from fineweb_shards.system.standard_streams import prepare_streams; prepare_streams();"
        f"f = open({str(tmp_path / 'file')!r}, 'w'); assert f.fileno() > 2;"
        "assert all(os.get_inheritable(i) for i in range(3)); print('nobody hears this')"
    )
    words = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    assert subprocess.run(words, check=False).returncode == 0
