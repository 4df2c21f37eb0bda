"""Input from web servers: the same bytes as from the disk, whatever the network does, and words for mistakes."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from fineweb_shards.errors import ChangedError, InputError, ShardError, UsageError
from fineweb_shards.formats import base
from fineweb_shards.sources.files import find_files
from fineweb_shards.system.retry import Clock
from tests.support import reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl, write_parquet, write_text, write_zstd
from tests.support.web_server import WebFiles

DOCUMENTS = [text for text in make_documents(160, seed=5) if "<|endoftext|>" not in text]
PLAIN = [text for text in DOCUMENTS if text and "\r" not in text and "\ufffd" not in text]
FORMS = ("parquet", "jsonl", "jsonl.zst", "txt")
SHARD_TOKENS = 3000


def content(folder: Path, documents: list[str], form: str) -> bytes:
    """What a file of these documents holds."""
    path = folder / "made"
    if form == "parquet":
        write_parquet(path, documents, 16)
    elif form == "txt":
        write_text(path, documents)
    else:
        write_jsonl(path, documents)
    return write_zstd(path, path.read_bytes()).read_bytes() if form.endswith("zst") else path.read_bytes()


def expected(documents: list[str]) -> dict[str, bytes]:
    return reference.shard_files(reference.stream(documents), SHARD_TOKENS)


def build(out: Path, *inputs: str, **settings: object) -> dict[str, bytes]:
    runs.build_inline(out, *inputs, **{"shard_tokens": SHARD_TOKENS, "batch_bytes": 4096, **settings})
    return runs.shards_in(out)


@pytest.mark.full(but=["jsonl-ETag", "parquet-date"])
@pytest.mark.parametrize("etag", ['"{}"', ""], ids=["ETag", "date"])
@pytest.mark.parametrize("form", FORMS)
def test_the_same_bytes_after_faults(
    tmp_path: Path, web: WebFiles, monkeypatch: pytest.MonkeyPatch, form: str, etag: str
) -> None:
    """Two files give the tokens of a plain loop over their documents, although answers fail and break off."""
    monkeypatch.setattr(base, "_SMALL_BYTES", 0)
    monkeypatch.setattr(Clock, "sleep", lambda clock, seconds: None)
    half = len(PLAIN) // 2
    web.etag = etag
    for number, documents in enumerate((PLAIN[:half], PLAIN[half:])):
        web.files[f"/a/{number}.{form}"] = content(tmp_path, documents, form)
    web.faults += ["", "reset", 503, "", "cut", 429, "cut", "reset"]
    addresses = [f"{web.url}/a/{number}.{form}" for number in range(2)]
    assert build(tmp_path / "out", *addresses) == expected(PLAIN)
    assert not web.faults
    runs.forget_after(tmp_path / "out", 2)
    assert build(tmp_path / "out", *addresses) == expected(PLAIN)


@pytest.mark.full
@pytest.mark.parametrize("form", FORMS)
def test_the_real_command_is_killed_and_resumed(tmp_path: Path, web: WebFiles, form: str) -> None:
    """The command with two workers is killed by kill -9 at a request, resumed, and gives the same."""
    web.files = {f"/{n}.{form}": content(tmp_path, PLAIN[n::8], form) for n in range(8)}
    words = ["build", *(web.url + path for path in web.files), "--out", tmp_path / "out"]
    words += ["--shard-tokens", SHARD_TOKENS, "--workers", 2, "--batch-bytes", 4096]
    with subprocess.Popen(runs.command(*words), start_new_session=True) as running:

        def kill(number: int) -> None:
            if number == 22:  # each file was looked at by two
                running.kill()

        web.on_request = kill
    assert running.returncode == -signal.SIGKILL
    web.faults += ["", "", "cut"]
    done = runs.run_command(*words)
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(tmp_path / "out") == expected([text for n in range(8) for text in PLAIN[n::8]])


@pytest.mark.parametrize("etag", ['"{}"', 'W/"{}"', ""], ids=["ETag", "weak ETag", "date"])
def test_a_replaced_file_is_refused(tmp_path: Path, web: WebFiles, etag: str) -> None:
    """By its name, when it is replaced between two runs, and when it is replaced during one, even in the same size."""
    web.etag = etag
    web.files["/a.jsonl"] = content(tmp_path, PLAIN, "jsonl")
    build(tmp_path / "out", f"{web.url}/a.jsonl")
    runs.forget_after(tmp_path / "out", 1)
    job = runs.job_of(tmp_path / "other", f"{web.url}/a.jsonl", batch_bytes=4096)
    web.files["/a.jsonl"] = content(tmp_path, PLAIN[::-1], "jsonl")
    web.date = "Wed, 21 Oct 2015 07:28:01 GMT"
    with pytest.raises(ChangedError, match=r"/a\.jsonl: it has another ETag than when these shards were begun"):
        build(tmp_path / "out", f"{web.url}/a.jsonl")
    for _ in "other content", "shorter":
        with pytest.raises(ChangedError, match=r"/a\.jsonl: the object was replaced while it was being read"):
            list(job.source.batches(runs.START))
        web.files["/a.jsonl"] = b""


def test_names_with_percent_signs(tmp_path: Path, web: WebFiles) -> None:
    """An address is written as a browser shows it; the server is asked for just that."""
    web.files["/a b/ü+c.txt"] = content(tmp_path, PLAIN[:3], "txt")
    assert build(tmp_path / "out", f"{web.url}/a%20b/%C3%BC+c.txt") == expected(PLAIN[:3])
    assert {request.split()[1] for request in web.requests} == {"/a%20b/%C3%BC+c.txt"}


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"has_ranges": False}, "can't send a part of it"),
        ({"has_length": False}, "does not give this file's size"),
        ({"etag": "", "date": ""}, "neither an ETag nor a date"),
        ({"status": 405}, r"the store refuses \(405\)"),
        ({"status": 401}, r"refused \(401\)"),
        ({"status": 403}, r"refuses \(403\)"),
    ],
)
def test_a_server_that_can_not_be_used(web: WebFiles, answers: dict[str, object], words: str) -> None:
    """It is refused at once with the way out: download the file."""
    web.files["/a.txt"] = b"text"
    for name, value in answers.items():
        setattr(web, name, value)
    with pytest.raises(InputError, match=words) as caught:
        find_files((f"{web.url}/a.txt",), "auto")
    assert web.url in caught.value.message
    assert "curl -LO" in caught.value.hint


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [
        ("/missing.txt", 3, "there is no such file on this server"),
        ("/*.txt", 2, "no folders and no patterns"),
        ("/folder/", 2, "no folders and no patterns"),
        ("", 2, "no folders and no patterns"),
        ("/a.txt?sig=SECRET", 2, "after a question mark"),
        ("/a/../b.txt", 2, "'..' can't be part of a name"),
    ],
)
def test_mistakes_in_an_address(web: WebFiles, address: str, code: int, words: str) -> None:
    """One sentence each, and no secret in it."""
    with pytest.raises(ShardError) as caught:
        find_files((web.url + address,), "auto")
    assert caught.value.exit_code == code
    assert words in caught.value.message
    assert "SECRET" not in caught.value.message


@pytest.mark.parametrize(
    ("address", "hint"),
    [("ftp://host/a.txt", "download others first"), ("htps://host/a.txt", "Did you mean https://?")],
)
def test_other_schemes(address: str, hint: str) -> None:
    """They are refused with what can be read."""
    with pytest.raises(UsageError, match="no known object store") as caught:
        find_files((address,), "auto")
    assert hint in caught.value.hint


def test_a_password_is_not_shown() -> None:
    """An address with a password is refused without it."""
    with pytest.raises(ShardError, match="password") as caught:
        find_files(("https://me:SECRET@host/a.txt",), "auto")
    assert caught.value.exit_code == 2
    assert "SECRET" not in caught.value.message + caught.value.hint
