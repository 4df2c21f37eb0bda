"""Input from buckets: the same bytes as from the disk, whatever the network does, and words for mistakes."""

from __future__ import annotations

import contextlib
import gzip
import time
from dataclasses import replace
from pathlib import Path

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_shards.errors import ChangedError, InputError, ShardError, UsageError
from fineweb_shards.events import Observer
from fineweb_shards.formats import base
from fineweb_shards.run.config import Config
from fineweb_shards.run.job import make_job
from fineweb_shards.run.plan import make_plan
from fineweb_shards.sources.files import check_same_files, files_to_json, find_files
from fineweb_shards.storage.bucket import Bucket
from fineweb_shards.system.retry import Clock
from fineweb_shards.system.shell_commands import install_command
from tests.support import inline, reference, runs
from tests.support.bucket_server import KEY, SECRET, Door, Fault
from tests.support.documents import make_documents
from tests.support.inputs import write_csv, write_gzip, write_jsonl, write_parquet, write_text, write_zstd

DOCUMENTS = [text for text in make_documents(240, seed=5) if "<|endoftext|>" not in text]
# What is a document in every form.
PLAIN = [text for text in DOCUMENTS if text and "\r" not in text and "\ufffd" not in text]
FORMS = ("parquet", "jsonl", "txt", "csv", "tsv", "jsonl.gz", "txt.gz", "txt.zst", "jsonl.zst", "csv.gz")
SHARD_TOKENS = 3000


def write_form(path: Path, documents: list[str], form: str) -> Path:
    """Write documents in a form, without what it can't hold."""
    if form == "parquet":
        return write_parquet(path, documents, 16)
    kind, _, packing = form.partition(".")
    plain = path.with_name("plain")
    if kind == "jsonl":
        write_jsonl(plain, documents)
    elif kind == "txt":
        write_text(plain, documents)
    else:
        write_csv(plain, documents, "\t" if kind == "tsv" else ",")
    data = plain.read_bytes()
    plain.unlink()
    if packing == "gz":
        return write_gzip(path, data)
    if packing == "zst":
        return write_zstd(path, data)
    path.write_bytes(data)
    return path


def upload_forms(folder: Path, url: str, forms: dict[str, list[str]]) -> None:
    """Put files into a bucket; the key of `forms` is a name."""
    for name, documents in forms.items():
        path = write_form(folder / name.replace("/", "-"), documents, name.partition(".")[2])
        Bucket(url).upload(path, name)
        path.unlink()


def expected(documents: list[str]) -> dict[str, bytes]:
    return reference.shard_files(reference.stream(documents), SHARD_TOKENS)


def build(out: Path, *inputs: str, **settings: object) -> dict[str, bytes]:
    settings = {"shard_tokens": SHARD_TOKENS, "batch_bytes": 4096, **settings}
    runs.build_inline(out, *inputs, **settings)
    return runs.shards_in(out)


@pytest.mark.full(but=["parquet", "jsonl.zst", "txt", "csv.gz"])
@pytest.mark.parametrize("form", FORMS)
def test_the_same_bytes_as_the_reference(tmp_path: Path, bucket_url: str, form: str) -> None:
    """Every form, in several files of a folder, gives the tokens of a plain loop over its documents."""
    third = len(PLAIN) // 3
    parts = {f"data/{n}.{form}": PLAIN[n * third : (n + 1) * third] for n in range(3)}
    upload_forms(tmp_path, bucket_url, parts)
    assert build(tmp_path / "out", f"{bucket_url}/data") == expected(PLAIN[: 3 * third])


@pytest.mark.parametrize("form", ["jsonl", "txt"])
def test_the_same_bytes_by_ranges(
    tmp_path: Path, bucket_url: str, door: Door, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A text that is not small is read by ranges: the same tokens, also after faults; an object that is replaced is
    noticed."""
    monkeypatch.setattr(base, "_SMALL_BYTES", 0)
    monkeypatch.setattr(Clock, "sleep", lambda clock, seconds: None)
    upload_forms(tmp_path, bucket_url, {f"a/0.{form}": PLAIN})
    door.faults += [Fault(method="GET", cut=True, skip=4, times=2), Fault(method="GET", status=500, skip=8)]
    assert build(tmp_path / "out", f"{bucket_url}/a") == expected(PLAIN)
    assert len({read.range for read in door.reads}) > 4
    job = runs.job_of(tmp_path / "other", f"{bucket_url}/a", batch_bytes=4096)
    upload_forms(tmp_path, bucket_url, {f"a/0.{form}": [*PLAIN[1:], PLAIN[0]]})
    with pytest.raises(ChangedError, match="the object was replaced"):
        list(job.source.batches(runs.START))


@pytest.mark.full
@pytest.mark.parametrize("form", ["parquet", "jsonl", "jsonl.gz", "csv"])
def test_the_real_command_with_workers(tmp_path: Path, bucket_url: str, form: str) -> None:
    """The command with two workers gives the same; so does one that is resumed."""
    half = len(PLAIN) // 2
    upload_forms(tmp_path, bucket_url, {f"a/0.{form}": PLAIN[:half], f"a/1.{form}": PLAIN[half:]})
    words = ["build", f"{bucket_url}/a/", "--out", tmp_path / "out", "--shard-tokens", SHARD_TOKENS]
    words += ["--workers", 2, "--batch-bytes", 4096]
    done = runs.run_command(*map(str, words))
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(tmp_path / "out") == expected(PLAIN)
    assert KEY not in done.stderr + done.stdout
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    for shard in sorted((tmp_path / "out").glob("*.npy"))[4:]:
        shard.unlink()
    runs.forget_after(tmp_path / "out", 4)
    done = runs.run_command(*map(str, words))
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(tmp_path / "out") == expected(PLAIN)


def test_what_an_address_stands_for(tmp_path: Path, bucket_url: str) -> None:
    """One object, a folder with all below it, a glob: as on a disk, hidden names and marks of folders left out."""
    names = ["a/1.jsonl", "a/b/2.jsonl", "a/b/3.txt", "a/.hidden.jsonl", "a/notes.pdf", "ab/4.jsonl", "a/x[1].txt"]
    for name in names:
        Bucket(bucket_url).overwrite(name, b'{"text": "a"}\n')
    mark = {"Bucket": bucket_url.removeprefix("s3://"), "Key": "a/b/", "Body": b""}
    boto3.client("s3").put_object(**mark)
    notes: list[str] = []

    def found(*inputs: str, form: str = "auto") -> list[str]:
        return [file.name for file in find_files(tuple(bucket_url + text for text in inputs), form, note=notes.append)]

    assert found("/a/1.jsonl") == ["1.jsonl"]
    assert found("/a/notes.pdf") == ["notes.pdf"]
    assert found("/a") == found("/a/") == ["1.jsonl", "b/2.jsonl", "b/3.txt", "x[1].txt"]
    assert "notes.pdf" in notes[0]
    assert found("") == ["a/1.jsonl", "a/b/2.jsonl", "a/b/3.txt", "a/x[1].txt", "ab/4.jsonl"]
    assert found("/a/*.jsonl") == ["1.jsonl"]
    assert found("/a*/*.jsonl") == ["a/1.jsonl", "ab/4.jsonl"]
    assert found("/**/*.jsonl") == ["a/1.jsonl", "a/b/2.jsonl", "ab/4.jsonl"]
    assert found("/a/?.jsonl") == ["1.jsonl"]
    assert found("/a/b/[23].*") == ["2.jsonl", "3.txt"]
    assert found("/a/x[1].txt") == ["x[1].txt"]
    assert found("/a", form="jsonl") == ["1.jsonl", "b/2.jsonl", "b/3.txt", "notes.pdf", "x[1].txt"]
    assert found("/ab", "/a/b") == ["4.jsonl", "2.jsonl", "3.txt"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/nothing", "there is no such object or folder"),
        ("/nothing/*.jsonl", "no file matches"),
        ("/odd", "holds no file with a known extension"),
        ("/odd/*", "holds no file with a known extension: a.pdf"),
        ("/a.parquet.gz", "compressed parquet can't be read"),
    ],
)
def test_input_that_is_not_there(bucket_url: str, text: str, words: str) -> None:
    """The sentence names the flag, the address and what is wrong."""
    Bucket(bucket_url).overwrite("odd/a.pdf", b"1")
    Bucket(bucket_url).overwrite("a.parquet.gz", b"1")
    with pytest.raises(InputError, match=words) as caught:
        find_files((bucket_url + text,), "auto")
    assert bucket_url in caught.value.message
    assert caught.value.hint


def test_mistakes_in_the_command(tmp_path: Path, bucket_environment: str) -> None:
    """A bucket that is not there, a misspelt scheme, a key in the address: one sentence, the right exit code, no
    secret."""
    mistakes = (
        ("s3://there-is-none/x", 3, "there is no such bucket"),
        ("s3a://bucket/x", 2, "s3a://: no known object store. Did you mean s3://?"),
        ("s3://", 2, "this address names no bucket"),
        (f"s3://{KEY}:{SECRET}@bucket/x", 2, "holds credentials"),
        (f"s3://bucket/x?X-Amz-Signature={SECRET}", 2, "holds credentials"),
    )
    out = str(tmp_path / "out")
    commands = [[verb, "--input", url, "--out", out] for url, _, _ in mistakes for verb in ("build", "plan")]
    answers = runs.run_commands(commands)
    for (_, code, words), done in zip([one for one in mistakes for _ in range(2)], answers, strict=True):
        assert done.returncode == code, done.stderr
        assert words in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
        assert SECRET not in done.stderr + done.stdout
    assert not (tmp_path / "out").exists()


def test_validation_files_in_a_bucket(tmp_path: Path, bucket_url: str) -> None:
    """--val-input takes addresses like --input, and its files come first."""
    upload_forms(tmp_path, bucket_url, {"a/0.jsonl": PLAIN[:50], "a/1.jsonl": PLAIN[50:90], "v/0.txt.gz": PLAIN[90:95]})
    val = (f"{bucket_url}/v/*", f"{bucket_url}/a/1.jsonl")
    build(tmp_path / "out", f"{bucket_url}/a", val_input=val)
    local = tmp_path / "local"
    local.mkdir()
    for name, documents in (("0.jsonl", PLAIN[:50]), ("1.jsonl", PLAIN[50:90]), ("v.txt.gz", PLAIN[90:95])):
        write_form(local / name, documents, name.partition(".")[2])
    vals = (str(local / "v.txt.gz"), str(local / "1.jsonl"))
    wanted = build(tmp_path / "other", str(local / "0.jsonl"), val_input=vals)
    assert runs.shards_in(tmp_path / "out") == wanted


@pytest.mark.parametrize("form", ["parquet", "jsonl", "txt.gz", "csv"])
def test_a_replaced_object_is_refused_by_a_resume(tmp_path: Path, bucket_url: str, form: str) -> None:
    """An object that is not the one with which the shards were begun is named, even in the same size."""
    upload_forms(tmp_path, bucket_url, {f"a/0.{form}": PLAIN})
    build(tmp_path / "out", f"{bucket_url}/a")
    runs.forget_after(tmp_path / "out", 1)
    upload_forms(tmp_path, bucket_url, {f"a/0.{form}": [*PLAIN[1:], PLAIN[0]]})
    with pytest.raises(ChangedError, match=f"{bucket_url}/a/0.{form}: the file has"):
        build(tmp_path / "out", f"{bucket_url}/a")


@pytest.mark.parametrize("form", ["parquet", "jsonl", "txt.gz", "csv"])
def test_a_replaced_object_is_noticed_during_a_run(tmp_path: Path, bucket_url: str, form: str) -> None:
    """No byte of the new object is read; the error names it."""
    upload_forms(tmp_path, bucket_url, {f"a/0.{form}": PLAIN})
    job = runs.job_of(tmp_path / "out", f"{bucket_url}/a", batch_bytes=4096)
    upload_forms(tmp_path, bucket_url, {f"a/0.{form}": [*PLAIN[1:], PLAIN[0]]})

    def read_all() -> None:
        with contextlib.closing(job.source) as source:
            for batch in source.batches(runs.START):
                for _ in source.chunks(batch):
                    pass

    with pytest.raises(ChangedError, match=f"{bucket_url}/a/0.{form}: the object was replaced"):
        read_all()


@pytest.mark.parametrize("form", ["jsonl", "csv"])
@pytest.mark.parametrize("begun_in", ["folder", "bucket"])
def test_a_copy_between_a_folder_and_a_bucket_goes_on(
    tmp_path: Path, bucket_url: str, begun_in: str, form: str
) -> None:
    """Their hashes are of different kinds: without --same-source it is said that they can't be compared, and with it
    the sizes decide."""
    path = write_form(tmp_path / f"0.{form}", PLAIN, form)
    Bucket(bucket_url).upload(path, f"a/0.{form}")
    begun, copy = find_files((str(path),), "auto"), find_files((f"{bucket_url}/a",), "auto")
    if begun_in == "bucket":
        begun, copy = copy, begun
    recorded = files_to_json(begun)
    with pytest.raises(ChangedError, match=r"can't be compared\. Its size is the same") as caught:
        check_same_files(copy, recorded, same_source=False)
    assert "--same-source" in caught.value.hint
    check_same_files(copy, recorded, same_source=True)
    recorded[0]["size_bytes"] += 1
    with pytest.raises(ChangedError, match="the file has shrunk"):
        check_same_files(copy, recorded, same_source=True)


@pytest.mark.full
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("begun_in", ["folder", "bucket"])
def test_a_build_goes_on_with_a_copy_elsewhere(tmp_path: Path, bucket_url: str, begun_in: str, form: str) -> None:
    """A place in a file means the same on a disk and in a bucket: the shards are the reference's."""
    (tmp_path / "in").mkdir()
    path = write_form(tmp_path / "in" / f"0.{form}", PLAIN, form)
    Bucket(bucket_url).upload(path, f"a/0.{form}")
    places = [f"{tmp_path}/in", f"{bucket_url}/a"]
    words = ["--out", tmp_path / "out", "--shard-tokens", str(SHARD_TOKENS), "--batch-bytes", "4096"]
    for place in places if begun_in == "folder" else places[::-1]:
        limit = [] if (tmp_path / "out").exists() else ["--max-tokens", "7k"]
        done = inline.run_command("build", place, *words, *limit, "--same-source")
        assert done.returncode == 0, done.stderr
    assert runs.shards_in(tmp_path / "out") == expected(PLAIN)


@pytest.mark.parametrize(
    ("before", "now", "goes_on"),
    [("a" * 32, "b" * 32, False), ("a" * 32, "b" * 32 + "-2", True), ("modified 1.0", "0x8D", True)],
)
def test_etags_that_do_not_follow_from_the_content_are_not_compared(
    bucket_url: str, tmp_path: Path, before: str, now: str, goes_on: bool
) -> None:
    """A copy that was sent in other parts, or is in another store, has another ETag: with --same-source it goes on; two
    MD5 of the content are proof."""
    upload_forms(tmp_path, bucket_url, {"a/0.jsonl": PLAIN[:5]})
    (file,) = find_files((f"{bucket_url}/a",), "auto")
    (recorded,) = files_to_json((file,))
    copy = (replace(file, content_hash=now),)
    with pytest.raises(ChangedError, match="another ETag" if goes_on else "other content") as caught:
        check_same_files(copy, [{**recorded, "content_hash": before}], same_source=False)
    assert ("--same-source" in caught.value.hint) == goes_on
    with contextlib.nullcontext() if goes_on else pytest.raises(ChangedError):
        check_same_files(copy, [{**recorded, "content_hash": before}], same_source=True)


def test_a_copy_of_the_same_content_goes_on(tmp_path: Path, bucket_url: str) -> None:
    """An object that is written again with the same bytes is the same object."""
    upload_forms(tmp_path, bucket_url, {"a/0.jsonl": PLAIN})
    build(tmp_path / "out", f"{bucket_url}/a")
    runs.forget_after(tmp_path / "out", 2)
    time.sleep(1.1)  # dates have seconds
    upload_forms(tmp_path, bucket_url, {"a/0.jsonl": PLAIN})
    assert build(tmp_path / "out", f"{bucket_url}/a") == expected(PLAIN)


@pytest.mark.full(but=["parquet", "csv"])
@pytest.mark.parametrize("form", ["parquet", "jsonl", "jsonl.zst", "csv"])
def test_faults_change_nothing(
    tmp_path: Path, bucket_url: str, door: Door, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Errors of the server and broken connections are waited for, and the bytes are the same."""
    monkeypatch.setattr(Clock, "sleep", lambda clock, seconds: None)
    upload_forms(tmp_path, bucket_url, {f"a/{n}.{form}": PLAIN[n * 40 :][:40] for n in range(4)})
    door.faults += [
        Fault(method="GET", path="list-type", status=503, code="SlowDown", times=2),
        Fault(method="GET", resets=True, times=2),
        Fault(method="GET", status=500, code="InternalError", times=3),
        Fault(method="GET", cut=True, times=3),
    ]
    assert build(tmp_path / "out", f"{bucket_url}/a") == expected(PLAIN[:160])
    assert not any(fault.times for fault in door.faults)


@pytest.mark.full
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_bytes_damaged_on_the_way_are_fetched_again(tmp_path: Path, bucket_url: str, door: Door, form: str) -> None:
    """What can't be read the first time, and can the second, is neither blamed on the object nor left out."""
    copies = 40  # a small text is fetched whole by the parent
    documents = [f"{copy}: {text}" for copy in range(copies) for text in PLAIN]
    path = tmp_path / f"0.{form}"
    if form == "parquet":
        table = pa.table({"text": documents})
        pq.write_table(table, path, row_group_size=100, compression="none", use_dictionary=False)
    else:
        write_jsonl(path, documents)
    Bucket(bucket_url).upload(path, f"a/0.{form}")
    content = path.read_bytes()
    # A length, or the quote before a key: in a batch, and not where its end is looked for.
    text = documents[30 * len(PLAIN)].encode()
    at = content.index(text) - 1 if form == "parquet" else content.index(b'"text"', 2_200_000)
    context, damaged = content[at - 40 : at + 40], bytearray(content[at - 40 : at + 40])
    damaged[40] ^= 0x80
    answers = 0

    def damage(answer: bytes) -> bytes:
        nonlocal answers
        answers += context in answer
        return answer.replace(context, bytes(damaged)) if answers == 1 else answer

    door.damage = damage
    assert build(tmp_path / "out", f"{bucket_url}/a", batch_bytes=400_000) == expected(documents)
    assert answers == 2


def test_an_interrupted_run_goes_on(tmp_path: Path, bucket_url: str, door: Door) -> None:
    """A refusal in the middle ends the run with the reason; when it is gone, the same command goes on."""
    upload_forms(tmp_path, bucket_url, {f"a/{n}.parquet": PLAIN[n * 40 :][:40] for n in range(4)})
    door.faults.append(Fault(method="GET", path=r"a/2\.parquet", status=403, code="AccessDenied", times=999))
    with pytest.raises(ShardError, match="access is denied"):
        build(tmp_path / "out", f"{bucket_url}/a")
    before = runs.shards_in(tmp_path / "out")
    assert before
    door.faults.clear()
    door.requests.clear()
    assert build(tmp_path / "out", f"{bucket_url}/a") == expected(PLAIN[:160])
    assert not any("GET" in request and "a/0.parquet" in request for request in door.requests)


@pytest.mark.full
def test_a_plan_takes_few_requests(tmp_path: Path, bucket_url: str, door: Door) -> None:
    """However many files there are, a plan reads a few footers and one sample."""
    upload_forms(tmp_path, bucket_url, {f"a/{n:02}.parquet": PLAIN[:40] for n in range(20)})
    door.requests.clear()
    config = Config(input=(f"{bucket_url}/a",), out=str(tmp_path / "out"))
    plan = make_plan(make_job(config, config.open_store(Observer())), trial_seconds=0.1)
    assert plan.extent.documents == 800
    assert len(door.requests) < 30
    upload_forms(tmp_path, bucket_url, {f"z/{n:02}.txt.gz": PLAIN[:40] for n in range(20)})
    door.requests.clear()
    config = Config(input=(f"{bucket_url}/z",), out=str(tmp_path / "out"))
    plan = make_plan(make_job(config, config.open_store(Observer())), trial_seconds=0.1)
    assert plan.extent.documents
    assert 700 < plan.extent.documents < 900
    assert len(door.requests) < 30


@pytest.mark.parametrize("cut", [0.3, 0.7])
def test_a_damaged_file_is_named_and_left_out(tmp_path: Path, bucket_url: str, cut: float) -> None:
    """What is before the damage is the same as from the disk."""
    data = gzip.compress("<|endoftext|>".join(PLAIN).encode(), 1)
    damaged = data[: int(len(data) * cut)]
    (tmp_path / "0.txt.gz").write_bytes(damaged)
    Bucket(bucket_url).overwrite("a/0.txt.gz", damaged)
    with pytest.raises(InputError, match=f"{bucket_url}/a/0.txt.gz: broken after"):
        build(tmp_path / "refused", f"{bucket_url}/a")
    wanted = build(tmp_path / "local", str(tmp_path / "0.txt.gz"), on_bad_file="skip")
    assert build(tmp_path / "out", f"{bucket_url}/a", on_bad_file="skip") == wanted


def test_the_extra_is_named_where_obstore_is_missing(bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step is the command that installs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        find_files((f"{bucket_url}/a",), "auto")
    assert install_command("obstore") in caught.value.hint


def test_our_own_output_is_no_input(bucket_url: str, tmp_path: Path) -> None:
    """Shards and manifest beside the input would be read as input by the next run."""
    upload_forms(tmp_path, bucket_url, {"a.jsonl": PLAIN[:5]})
    Bucket(bucket_url).overwrite("manifest.json", b"{}")
    Bucket(bucket_url).overwrite("edufineweb_val_000000.npy", b"0")
    config = Config(input=(bucket_url,), out=bucket_url, scratch=str(tmp_path))
    job = make_job(config, config.open_store(Observer()))
    assert [file.name for file in job.source.files] == ["a.jsonl"]
