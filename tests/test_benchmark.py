"""The parts of `make bench` that decide whether its figures mean anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their folder is no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize(
    "name", ["shard.npy", "train.bin", ".fineweb-shards/shard.npy.tmp", ".fineweb-shards/anything"]
)
def test_the_first_tokens_are_noticed_in_any_file(tmp_path: Path, name: str) -> None:
    """Whatever a layout or a worker calls it, but a header alone is no token."""
    from measure import tokens_in

    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(1024))
    assert tokens_in(tmp_path) == 0
    path.write_bytes(bytes(10_000))
    assert tokens_in(tmp_path) == 5000


@pytest.mark.parametrize(
    "name",
    ["manifest.json", "manifest.json.tmp", "log.txt", "report.html", "statistics.bin", "heartbeat.json.12.34.tmp"],
)
def test_other_files_are_no_tokens(tmp_path: Path, name: str) -> None:
    """What the program keeps for itself grows before the first token."""
    from measure import tokens_in

    folder = tmp_path / ".fineweb-shards"
    folder.mkdir()
    (folder / name).write_bytes(bytes(100_000))
    assert tokens_in(tmp_path) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_processor_time_is_told_apart(tmp_path: Path) -> None:
    """What the program itself uses and what its children use, after start-up."""
    from measure import run_program

    busy = "import time\nwhile time.process_time() < float({seconds}): pass"
    code = (
        "import pathlib, subprocess, sys, time; out = pathlib.Path(sys.argv[1]); out.mkdir();"
        "(out / 'first').touch(); time.sleep(0.2); begin = time.process_time();"
        f"subprocess.run([sys.executable, '-S', '-c', {busy.format(seconds=0.6)!r}])\n"
        "while time.process_time() < begin + 0.3: pass\nprint(7)"
    )
    measured = run_program([sys.executable, "-c", code, str(tmp_path / "out")], tmp_path / "out")
    assert measured.output == b"7\n"
    assert 0.2 < measured.parent_seconds < measured.worker_seconds
    assert measured.worker_seconds > 0.5


def test_prose_is_what_is_left_of_a_page() -> None:
    """Sentences, without markup, code and navigation; and nothing of a page in another language."""
    from prose import paragraphs_of

    page = (
        "<head><title>no</title></head><nav><a>Next page of the manual that is here</a></nav>"
        "<p>This is the <b>first</b> sentence of a manual &amp; it is for people to read.</p>"
        "<pre>for (i = 0; i != n; ++i) { x[i] += y[i] * z[i]; }</pre><td>short</td>"
    )
    assert paragraphs_of("a.html", page) == ["This is the first sentence of a manual & it is for people to read."]
    assert paragraphs_of("a.txt", "Dies ist ein ganzer Satz aus einem Handbuch und keiner auf Englisch.") == []


def test_no_sentence_occurs_twice() -> None:
    """Neither in a page nor in another one, whatever its numbers; what is then too short is left out."""
    from bench_documents import SeenSentences, make_documents

    long = " ".join(f"Sentence {letter} is about something else." for letter in "abcdefghijklmnop")
    once = "It took 12 seconds to read this page."
    pages = [[long, once], [once.replace("12", "7"), long], [f"{once} {long.replace('else', 'new')}"]]
    assert list(make_documents(pages, SeenSentences())) == [f"{long}\n{once}", long.replace("else", "new")]


def test_the_order_of_documents_depends_on_nothing_but_themselves(tmp_path: Path) -> None:
    """Wherever they come from, and with line breaks in them."""
    from bench_documents import shuffle

    documents = [f"document {number}\nof several\u2028 lines" for number in range(300)]
    found = list(shuffle(documents, tmp_path))
    assert found == list(shuffle(reversed(documents), tmp_path))
    assert sorted(found) == sorted(documents) != found
    assert not list(tmp_path.iterdir())


def test_the_corpus_is_the_same_documents_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where groups and files of parquet end, and its figures are those of the documents."""
    import json

    import bench_corpus as module
    import pyarrow.parquet as pq

    monkeypatch.setattr(module, "GROUP_DOCUMENTS", 10)
    monkeypatch.setattr(module, "FILE_GROUPS", 3)
    texts = [f"Text {number} of them." for number in range(37)]
    with module.CorpusWriter(tmp_path / "corpus", "a test", with_forms=True) as writer:
        for text in texts:
            writer.add(text)
    corpus = module.load_corpus(tmp_path / "corpus")
    tables = [pq.read_table(path) for path in corpus.parquet]
    lines = Path(corpus.form("jsonl")).read_text().splitlines()
    assert [len(table) for table in tables] == [30, 7]
    assert [text for table in tables for text in table["text"].to_pylist()] == texts
    assert Path(corpus.form("txt")).read_text().split("<|endoftext|>") == texts
    assert [json.loads(line)["text"] for line in lines] == texts
    assert corpus.documents == len(texts)
    assert corpus.bytes == sum(map(len, texts))
    assert corpus.tokens == sum(sum(table["token_count"].to_pylist()) for table in tables)


def test_the_control_plane_orders_a_resumed_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated workers, everything else real: every token behind the shards that are done is ordered."""
    from control_plane import Stream, Workers, order_stream

    from fineweb_shards.executors.local import executor

    monkeypatch.setattr(executor, "WorkerProcess", executor.WorkerProcess)  # which the simulation replaces

    stream = Stream(files=3, batches_a_file=100, batch_tokens=900_000, done_shards=1)
    ordered = order_stream(tmp_path / "out", Workers(0, 3), stream)
    assert ordered.tokens == 170_000_000
    assert ordered.shards == 2
    assert ordered.batches == 300 - 111  # the 112th batch has the last tokens of the first shard
