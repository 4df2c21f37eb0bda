"""The page: true figures, nothing of a document's that acts, one file of bounded size."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import time
import tomllib
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.events import Event
from fineweb_shards.layouts import get_layout
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import load_manifest
from fineweb_shards.output.manifest_file import save_manifest
from fineweb_shards.reading import statistics as shard_statistics
from fineweb_shards.reading.statistics import bucket_range, count_sample, spell, take_samples
from fineweb_shards.report import contents
from fineweb_shards.report.contents import count_left_out, gather_facts
from fineweb_shards.report.page import write_report
from fineweb_shards.run.config import Config
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.types import Counts, Cursor, Quarantined, ShardRecord
from fineweb_shards.vocabulary import GPT2
from fineweb_shards.watching.run_files import Heartbeat, History, Invocation, Mark, RunRecord, Waited
from tests.report.page_payloads import PAYLOADS
from tests.support import reference, runs
from tests.support.documents import make_documents
from tests.support.example_run import SNAPSHOT
from tests.support.inputs import write_jsonl

FORMAT = ShardFormat(get_layout("build-nanogpt"), GPT2)
DOCUMENTS = [text for text in make_documents(150, seed=73) if text]


class Page(HTMLParser):
    """Every element and every text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of several shards; documents run from one into the next."""
    folder = tmp_path_factory.mktemp("finished")
    path = write_jsonl(folder / "a.jsonl", DOCUMENTS)
    runs.build_inline(folder / "out", path, shard_tokens=5000)
    return folder / "out"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Payloads as documents, names, ids, causes, events and commands."""
    folder = tmp_path_factory.mktemp("hostile") / "<script>window.pwned=1<%2Fscript>"
    manifest = runs.build_inline(folder, write_jsonl(folder.parent / "a.jsonl", PAYLOADS))
    names = [{**manifest.files[0], "name": PAYLOADS[2]}]
    lost = tuple(Quarantined(0, 0, 0, 1, text, 1, "ab" * 32, text, text) for text in PAYLOADS)
    settings = {**manifest.parts[0].settings, "separator": PAYLOADS[0]}
    part = replace(manifest.parts[0], files=names, settings=settings)
    save_manifest(replace(manifest, parts=(part,), quarantined=lost, complete=False), FolderStore(folder))
    history = History()
    history.begin_run()
    for text in PAYLOADS:
        history.note(Event("worker", text))
        history.begin_wait("network", text)
        history.end_wait("network")
    history.save(folder)
    snapshot = replace(SNAPSHOT, reason=PAYLOADS[0])
    Heartbeat(time.time(), Invocation(PAYLOADS[2], PAYLOADS[4], 1, 0.0), snapshot, 3).save(folder)
    return folder


def page_of(folder: Path, monkeypatch: pytest.MonkeyPatch, samples: int = 5) -> str:
    monkeypatch.setattr(contents, "_SAMPLES", samples)
    return write_report(FolderStore(folder)).read_text("utf-8")


@pytest.mark.promise("untrusted text is shown safely")
def test_nothing_of_a_document_acts(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty payloads in every place: no element, attribute or address of theirs, no control character."""
    assert len(PAYLOADS) == 40
    text = page_of(hostile, monkeypatch, samples=400)
    page = Page(text)
    allowed = {"html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section",
               "h1", "h2", "h3", "p", "dl", "div", "dt", "dd", "figure", "figcaption", "details", "summary",
               "article", "table", "thead", "tbody", "tr", "th", "td", "pre", "code", "span",
               "svg", "g", "path", "text"}  # fmt: skip
    assert {name for name, _ in page.elements} <= allowed
    for _, attributes in page.elements:
        assert not {name for name in attributes if name.startswith(("on", "href", "src", "style", "xlink"))}
    assert all(char.isprintable() or char == "\n" for char in text)
    shown = page.text.replace("\n", " ")
    for payload in PAYLOADS:
        plain = "".join(char if char.isprintable() or char == "\n" else "·" for char in payload)
        assert plain.replace("\n", " ") in shown, payload


def test_the_policy_allows_the_style_sheet_and_nothing_else(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its hash; it stands before anything it could be too late for."""
    text = page_of(finished, monkeypatch)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = Page(text)
    policies = [a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == [f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"]
    assert text.index("Content-Security-Policy") < text.index("<style>")
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


def test_nothing_goes_around_the_escaping() -> None:
    """No template says that a text is safe, and one line of code does: for the style sheet."""
    room = Path(contents.__file__).parent
    for template in room.glob("*.html"):
        assert not re.search(r"\|\s*safe|autoescape|Markup", template.read_text()), template.name
    calls = [line for path in room.glob("*.py") for line in path.read_text().splitlines() if "Markup(" in line]
    assert len(calls) == 1
    assert "Markup(style)" in calls[0]


def test_the_wheel_holds_template_and_style_sheet() -> None:
    """What is installed can make the page."""
    data = tomllib.loads((Path(__file__).parent.parent.parent / "pyproject.toml").read_text())
    assert data["tool"]["setuptools"]["package-data"]["fineweb_shards.report"] == ["*.html", "*.css"]


def test_it_is_accessible(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Language, title, landmarks, headers with a scope."""
    page = Page(page_of(finished, monkeypatch))
    names = [name for name, _ in page.elements]
    assert dict(page.elements)["html"]["lang"] == "en"
    assert {"title", "header", "main", "footer"} <= set(names)
    assert all(attributes.get("scope") for name, attributes in page.elements if name == "th")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_figures_are_those_of_the_documents(finished: Path) -> None:
    """Lengths, frequencies and bytes a token, counted here once more from the texts."""
    manifest = load_manifest(finished)
    assert manifest is not None
    counted, _ = count_sample(FolderStore(finished), FORMAT, manifest.shards, in_order=True)
    figures = counted.closed(eot_first=True)
    encoded = [reference.encode(text) for text in DOCUMENTS]
    lengths = Counter(len(tokens).bit_length() for tokens in encoded)
    assert {i: int(n) for i, n in enumerate(figures.lengths) if n} == dict(lengths)
    assert all(low <= high for low, high in map(bucket_range, lengths))
    frequencies = Counter(token for tokens in encoded for token in tokens)
    assert figures.most_frequent(5)[0] == frequencies.most_common(1)[0]
    text_bytes = sum(len(reference.encoding().decode_bytes(tokens)) for tokens in encoded)
    assert figures.bytes_per_token == pytest.approx(text_bytes / sum(map(len, encoded)))


def test_of_large_shards_the_beginning_is_counted(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the page says so."""
    monkeypatch.setattr(shard_statistics, "SAMPLE_TOKENS", 1000)
    manifest = load_manifest(finished)
    assert manifest is not None
    figures, whole = count_sample(FolderStore(finished), FORMAT, manifest.shards, in_order=True)
    assert not whole
    assert figures.tokens == sum(min(1000, shard.tokens) for shard in manifest.shards)
    whole_documents = sum(
        max(0, int(np.count_nonzero(np.load(finished / shard.name)[:1000] == reference.EOT)) - 1)
        for shard in manifest.shards
    )
    assert figures.documents == whole_documents
    assert "Counted over a sample of " in write_report(FolderStore(finished)).read_text()


def test_of_many_shards_some_are_counted(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spread evenly, so that a report takes as long however many there are."""
    monkeypatch.setattr(shard_statistics, "_SAMPLED_SHARDS", 3)
    manifest = load_manifest(finished)
    assert manifest is not None
    step = -(-len(manifest.shards) // 3)
    assert step > 1
    figures, whole = count_sample(FolderStore(finished), FORMAT, manifest.shards, in_order=True)
    assert not whole
    assert figures.tokens == sum(shard.tokens for shard in manifest.shards[::step])


def eventful_history() -> History:
    """A killed run that waited twice, an interrupted one, one that came to its end."""
    begin = 1_700_000_000.0
    reasons = ["since 02:13 (status 503)", "since 02:14 (no connection)"]
    waits = [
        Mark(begin + start, "wait", f"waiting for the network {reason}", "network", begin + end)
        for reason, start, end in zip(reasons, (20, 70), (50, 80), strict=True)
    ]
    waited = {"network": Waited(2, 40.0)}
    runs_ = [RunRecord(1, begin, begin + 98, 0, 49 * 10**6, 10**8, 40.0, waited),
             RunRecord(2, begin + 5000, begin + 5038, 40 * 10**6, 59 * 10**6, ending="interrupted by Ctrl-C"),
             RunRecord(3, begin + 5040, begin + 5078, 59 * 10**6, 79 * 10**6, ending="complete")]  # fmt: skip
    return History(waits, runs_)


@pytest.fixture
def eventful(finished: Path, tmp_path: Path) -> Path:
    """The finished folder with an eventful history."""
    shutil.copytree(finished, tmp_path / "out")
    eventful_history().save(tmp_path / "out")
    return tmp_path / "out"


def test_runs_are_listed(eventful: Path) -> None:
    """Begin, end, how it ended, what was made and kept, and each wait with its cause and length."""
    text = Page(write_report(FolderStore(eventful)).read_text()).text
    for words in ["killed, or a power cut", "interrupted by Ctrl-C", "complete",
                  "40 s for the network, 2 times",
                  "waited 30 swaiting for the network since 02:13 (status 503)",
                  "waited 10 swaiting for the network since 02:14 (no connection)",
                  "49M40M845k100.0 MB",  # made, kept, over 58 s of work, fetched
                  "runs", "time waited", "fetched per second of work"]:  # fmt: skip
        assert words in text, words


def test_waits_are_no_time_of_work(eventful: Path) -> None:
    """The page says what it leaves out."""
    assert "working time, without waits" in Page(write_report(FolderStore(eventful)).read_text()).text


def test_what_did_not_happen_is_not_listed(finished: Path) -> None:
    """No rows of zeros; a count that is not 0 has its row."""
    assert "invalid characters" not in Page(write_report(FolderStore(finished)).read_text()).text
    manifest = load_manifest(finished)
    assert manifest is not None
    last = replace(manifest.shards[-1], counts=Counts(replaced_characters=7))
    known = gather_facts(FolderStore(finished))
    totals = {**manifest.totals, "replaced_characters": 7}
    changed = replace(manifest, shards=[*manifest.shards[:-1], last], totals=totals)
    status = replace(known.status, manifest=changed)
    left_out = count_left_out(replace(known, status=status))
    assert left_out is not None
    assert left_out["counts"].rows == [["Replaced by U+FFFD: invalid characters", "7"]]


def test_hashes_are_short_and_whole_under_the_pointer(finished: Path) -> None:
    """Twelve characters in the table; the whole one is the cell's title."""
    page, manifest = write_report(FolderStore(finished)).read_text(), load_manifest(finished)
    assert manifest is not None
    for shard in manifest.shards:
        assert f'<td class="hash" title="{shard.sha256}">{shard.sha256[:12]}…</td>' in page


def test_the_title_names_dataset_and_folder(eventful: Path) -> None:
    """And where the input was local files, those."""
    assert "<title>out: token shards of a.jsonl</title>" in write_report(FolderStore(eventful)).read_text()
    manifest = load_manifest(eventful)
    assert manifest is not None
    settings = {**manifest.parts[0].settings, "dataset": "HuggingFaceFW/fineweb-edu", "name": "sample-10BT"}
    part = replace(manifest.parts[0], settings=settings, commit="0123456789abcdef")
    save_manifest(replace(manifest, parts=(part,)), FolderStore(eventful))
    page = Page(write_report(FolderStore(eventful)).read_text())
    assert "out: token shards of HuggingFaceFW/fineweb-edu sample-10BT, commit 0123456789" in page.text


def test_samples_end_at_a_word(tmp_path: Path) -> None:
    """Wherever they are cut, and also where the document goes on in the next shard."""
    text = "unquestionably extraordinary circumstances notwithstanding " * 60
    runs.build_inline(tmp_path / "out", write_jsonl(tmp_path / "a.jsonl", [text] * 4), shard_tokens=301)
    manifest = load_manifest(tmp_path / "out")
    assert manifest is not None
    samples = take_samples(FolderStore(tmp_path / "out"), FORMAT, manifest.shards, 5)
    assert samples
    for sample in samples:
        assert sample.cut
        assert set(sample.text.split()) <= set(text.split()), sample.text[-40:]


def test_samples_are_documents(finished: Path) -> None:
    """Each is the beginning of one, and they are spread."""
    manifest = load_manifest(finished)
    assert manifest is not None
    samples = take_samples(FolderStore(finished), FORMAT, manifest.shards, 5)
    assert len(samples) >= 4  # a document may fill a whole shard, in which none begins
    for sample in samples:
        whole = sample.text.rstrip("\ufffd")
        assert any(text.startswith(whole) for text in DOCUMENTS), sample
    assert len({sample.shard for sample in samples}) > 2


def test_tokens_are_spelled_visibly() -> None:
    """Spaces, line ends and half characters have a sign."""
    assert spell(reference.encode(" the")[0], GPT2) == "␣the"
    assert spell(reference.encode("\n")[0], GPT2) == "\\n"
    assert spell(reference.encode("\x07")[0], GPT2) == "U+0007"
    assert spell(reference.encode("\u4f60")[0], GPT2).startswith("\\xe4")


def test_a_damaged_shard_costs_its_figures_only(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is made and says what is wrong."""
    manifest = load_manifest(finished)
    assert manifest is not None
    path = finished / manifest.shards[-1].name
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    try:
        assert "its length differs from the manifest" in page_of(finished, monkeypatch)
    finally:
        path.write_bytes(whole)


@pytest.mark.full
def test_the_page_stays_small(tmp_path: Path) -> None:
    """Below 1 MB with 13,000 shards, three days of history and all the faults that are kept."""
    (tmp_path / WORK_FOLDER).mkdir()
    record = ShardRecord(
        "edufineweb_train_000001.npy", "train", 0, 10**8, 10**5, 2 * 10**8 + 128, "a" * 64, (Cursor(0, 1),), Counts()
    )
    names = ["edufineweb_val_000000.npy", *(f"edufineweb_train_{i:06d}.npy" for i in range(1, 13_000))]
    shards = tuple(
        replace(record, name=name, split="train" if i else "val", end=(Cursor(0, i + 1),))
        for i, name in enumerate(names)
    )
    save_manifest(runs.manifest_of(Config().fingerprint(), [], shards=shards), FolderStore(tmp_path))
    history = {
        "interval_seconds": 256.0,
        "points": [[300.0 * i, 1, 10**9 * i, 10**9] for i in range(1000)],
        "marks": [{"time": 600.0 * i, "kind": "note", "text": "x" * 200} for i in range(400)],
    }
    (tmp_path / WORK_FOLDER / "history.json").write_text(json.dumps(history))
    page = write_report(FolderStore(tmp_path)).read_bytes()
    assert len(page) < 1_000_000
    assert b"The last 1,000 of 13,000" in page


def test_an_empty_folder_of_a_run_has_a_page(tmp_path: Path) -> None:
    """Before the first shard is finished."""
    (tmp_path / WORK_FOLDER).mkdir()
    save_manifest(runs.manifest_of(Config(shard_tokens=5).fingerprint(), []), FolderStore(tmp_path))
    assert gather_facts(FolderStore(tmp_path)).samples == []
    assert "No shard is finished yet." in write_report(FolderStore(tmp_path)).read_text()
