"""Every tokenizer: its shards are what its own library makes of each document, or it is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from fineweb_shards.output.manifest import load_manifest
from fineweb_shards.tokenizers.builtin_vocabularies import PATTERNS
from fineweb_shards.tokenizers.references import load_token_bytes
from fineweb_shards.tokenizers.trial import hostile_strings
from fineweb_shards.tokenizers.vocabulary_files import list_merges, ranks_to_json
from tests.support import inline, reference, runs, vocabularies
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl, write_parquet
from tests.support.vocabularies import PECULIAR, Tokenizer

DOCUMENTS = [*make_documents(150, seed=14), *PECULIAR]
SHARD_TOKENS = "7000"
WITH_WORKERS = ("cl100k", "llama3.json", "small.model")  # every day: one for each library; in a soak all


@pytest.fixture(scope="module", params=vocabularies.MAKERS, ids=lambda maker: maker.__name__)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    made: Tokenizer = request.param(tmp_path_factory.mktemp("tokenizer"))
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_parquet(folder / "a.parquet", DOCUMENTS[:100], 16)
    write_jsonl(folder / "b.jsonl", DOCUMENTS[100:])
    return folder


def tokens_in(folder: Path) -> list[int]:
    """The stream, read with numpy alone."""
    return [token for path in sorted(folder.glob("*_0*.npy"), key=_number) for token in np.load(path).tolist()]


def _number(path: Path) -> str:
    return path.stem[-6:]


@pytest.mark.full(but=["nanochat"])
@pytest.mark.promise("another vocabulary is exact by its own reference, or refused")
def test_shards_are_the_references(tokenizer: Tokenizer, source: Path, tmp_path: Path, soak: bool) -> None:
    """The fastest engine, for some in several processes, killed in between, and the reference: the same tokens,
    document by document, as wide as the vocabulary needs."""
    words = ["build", source, *tokenizer.flags, "--shard-tokens", SHARD_TOKENS, "--batch-bytes", "8192"]
    run = runs.run_command if soak or tokenizer.name in WITH_WORKERS else inline.run_command
    done = run(*words, "--workers", "3" if soak else "2", "--out", tmp_path / "fast")
    assert done.returncode == 0, done.stderr
    expected = tokenizer.stream(DOCUMENTS)
    assert tokens_in(tmp_path / "fast") == expected
    assert tokenizer.fast in (tmp_path / "fast" / ".fineweb-shards" / "log.txt").read_text()
    dtype = "uint32" if tokenizer.size > 65_536 else "uint16"
    assert {np.load(path).dtype.name for path in (tmp_path / "fast").glob("*.npy")} == {dtype}
    manifest = load_manifest(tmp_path / "fast")
    assert manifest is not None
    assert (manifest.vocabulary.size, manifest.vocabulary.eot) == (tokenizer.size, tokenizer.eot)

    engine = manifest.vocabulary.reference
    done = inline.run_command(*words, "--workers", "1", "--engine", engine, "--out", tmp_path / "slow")
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(tmp_path / "slow") == runs.shards_in(tmp_path / "fast")
    assert inline.run_command("verify", tmp_path / "fast").returncode == 0

    before = runs.shards_in(tmp_path / "fast")
    runs.forget_after(tmp_path / "fast", 2)
    for name in sorted(before)[2:]:
        (tmp_path / "fast" / name).unlink()
    done = inline.run_command(*words, "--out", tmp_path / "fast")
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(tmp_path / "fast") == before


@pytest.mark.full(but=["nanochat", "llama2", "sentence_pieces"])
@pytest.mark.promise("another vocabulary is exact by its own reference, or refused")
def test_hostile_strings_and_special_tokens_are_ordinary_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Whatever a document says, it is what the reference makes of it, and never EOT."""
    specials = ["</s>", "<|endoftext|>", "<|end_of_text|>", "<|begin_of_text|>", "<s>", "<|padding|>"]
    whole = [text for text in hostile_strings() if not any("\ud800" <= char <= "\udfff" for char in text)]
    documents = [*whole, *specials, *(f"a{special}b" for special in specials)]
    path = write_jsonl(tmp_path / "a.jsonl", documents)
    done = inline.run_command("build", path, *tokenizer.flags, "--out", tmp_path / "out", "--val-tokens", "0")
    assert done.returncode == 0, done.stderr
    tokens = tokens_in(tmp_path / "out")
    assert tokens == tokenizer.stream(documents)
    assert tokens.count(tokenizer.eot) == len(documents)


@pytest.mark.full
@pytest.mark.promise("another vocabulary is exact by its own reference, or refused")
def test_tokens_have_their_bytes(tokenizer: Tokenizer, source: Path, tmp_path: Path) -> None:
    """Where nothing normalizes a text, its tokens spell it; `inspect` shows it from the folder alone."""
    done = inline.run_command("build", source, *tokenizer.flags, "--out", tmp_path / "out", "--shard-tokens", "100M")
    assert done.returncode == 0, done.stderr
    manifest = load_manifest(tmp_path / "out")
    assert manifest is not None
    table = load_token_bytes(manifest.vocabulary)
    assert (len(table), table[tokenizer.eot]) == (tokenizer.size, b"")
    spelled = [b"".join(table[token] for token in tokenizer.encode(text)) for text in DOCUMENTS]
    if not tokenizer.has_normalizer:
        assert spelled == [text.encode() for text in DOCUMENTS]
    prose = DOCUMENTS[0][:30].split()[0]
    assert any(prose.encode() in one for one in spelled)
    shown = inline.run_command("inspect", tmp_path / "out", "--grep", prose)
    assert (shown.returncode, prose in shown.stdout) == (0, True), shown.stderr


def write_bytes_json(path: Path, **parts: object) -> Path:
    """A `tokenizer.json` of 256 bytes and an EOT, and of other `parts`: it is loaded in no time."""
    letters = sorted(ByteLevel.alphabet())
    eot = {"id": 256, "content": "<|endoftext|>", "special": True, "normalized": False}
    eot |= dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    model = {"type": "BPE", "vocab": {letter: i for i, letter in enumerate(letters)}, "merges": []}
    cut = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    whole = {"version": "1.0", "model": model, "added_tokens": [eot], "pre_tokenizer": cut, **parts}
    path.write_text(json.dumps(whole))
    return path


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A document, and files that are no tokenizers."""
    write_jsonl(tmp_path / "a.jsonl", ["a document"])
    vocabularies.write_ranks(tmp_path / "ranks.tiktoken", vocabularies.small_ranks(1000))
    ranks = (tmp_path / "ranks.tiktoken").read_bytes().splitlines(keepends=True)
    (tmp_path / "torn.tiktoken").write_bytes(b"".join(ranks[:500]) + b"IGE= 5 00\n" + b"".join(ranks[500:]))
    (tmp_path / "twice.tiktoken").write_bytes(b"".join([*ranks, ranks[-1]]))
    (tmp_path / "few.tiktoken").write_bytes(b"".join(ranks[1:]))
    (tmp_path / "tokenizer.pkl").write_bytes(b"\x80\x04K\x01.")
    (tmp_path / "config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (tmp_path / "broken.json").write_text('{"model": ')
    (tmp_path / "wrong.json").write_text('{"model": {"type": "BPE"}}')
    hollow = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}
    (tmp_path / "hollow.json").write_text(json.dumps(hollow))
    # On both of these Hugging Face's library panics: while it loads, and while it encodes.
    unreadable = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    write_bytes_json(tmp_path / "panic.json", normalizer=unreadable)
    endless = {"type": "Split", "pattern": {"Regex": r"(\w+)+\d$"}, "behavior": "Isolated", "invert": False}
    write_bytes_json(tmp_path / "endless.json", pre_tokenizer=endless)
    (tmp_path / "noise.model").write_bytes(b"\x0a\xff" * 500)
    (tmp_path / "empty.model").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.promise("another vocabulary is exact by its own reference, or refused")
@pytest.mark.parametrize(
    ("flags", "code", "sentence"),
    [
        (["nothing.json"], 2, "nothing.json: there is no such file or name"),
        (["folder/nothing"], 2, "folder/nothing: there is no such file or name"),
        (["models/tokenizer.json"], 2, "models/tokenizer.json: there is no such file or name"),
        (["hollow.json"], 3, "it has no tokens"),
        (["lama3"], 2, "Did you mean llama3?"),
        (["torn.tiktoken", "--pattern", "gpt2"], 3, "b'IGE= 5 00' is not a line of a rank file"),
        (["twice.tiktoken", "--pattern", "gpt2"], 3, "a token or a rank occurs twice"),
        (["few.tiktoken", "--pattern", "gpt2"], 3, "there is no token for the byte 0x21"),
        (["ranks.tiktoken"], 2, "does not contain the pattern"),
        (["ranks.tiktoken", "--pattern", "cl100"], 2, "there is no pattern of this name"),
        (["ranks.tiktoken", "--pattern", r"(\w+", "--eot", "1000"], 2, "not a regular expression"),
        (["ranks.tiktoken", "--pattern", r"\w+|\s+", "--eot", "1000"], 2, "match every part of a text"),
        (["ranks.tiktoken", "--pattern", "gpt2"], 2, "so 1000 is free"),
        (["ranks.tiktoken", "--pattern", "gpt2", "--eot", "7"], 2, "this id stands for the text"),
        (["ranks.tiktoken", "--pattern", "gpt2", "--eot", "<end>"], 2, "has no special token of this name"),
        (["ranks.tiktoken", "--pattern", "gpt2", "--eot", "9999999"], 2, "end at 999"),
        (["tokenizer.pkl"], 2, "e._mergeable_ranks"),
        (["config.json"], 3, "it has no `model`"),
        (["broken.json"], 3, "not valid JSON"),
        (["wrong.json"], 3, "can't load it"),
        (["panic.json"], 3, "can't load it (Precompiled: "),
        (["endless.json"], 3, "fails on ordinary texts with it (Onig: Regex search error: retry-limit"),
        (["noise.model"], 3, "not a tokenizer file of a supported kind"),
        (["empty.model"], 3, "the file is empty"),
        (["folder"], 2, "it has none of tokenizer.json"),
        (["gpt2", "--pattern", "gpt2"], 2, "the tokenizer gpt2 has its own"),
        (["gpt2", "--engine", "tokenizers"], 2, "the reference for gpt2 is tiktoken"),
    ],
)
def test_a_wrong_tokenizer_has_its_sentence(files: Path, flags: list[str], code: int, sentence: str) -> None:
    """With the file or the value, the next step, the right exit code, and no folder left behind."""
    words = ["build", "a.jsonl", "--tokenizer", *flags, "--out", "out"]
    done = inline.run_command(*words, cwd=files)
    assert (done.returncode, done.stdout) == (code, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (files / "out" / "manifest.json").exists()


@pytest.mark.full
def test_a_plan_names_the_tokenizer_and_does_not_believe_token_count(tmp_path: Path) -> None:
    """FineWeb counts GPT-2's tokens, which are not those of another vocabulary."""
    tokenizer, documents = vocabularies.nanochat(tmp_path), make_documents(200)
    others = {name: ["x"] * len(documents) for name in ("id", "dump", "url", "file_path")}
    counts = [len(reference.encode(text)) for text in documents]
    pq.write_table(pa.table({"text": documents, "token_count": counts, **others}), tmp_path / "a.parquet")
    done = inline.run_command(
        "plan", tmp_path / "a.parquet", *tokenizer.flags, "--out", tmp_path / "out", "--shard-tokens", "100M"
    )
    assert done.returncode == 0, done.stderr
    assert "tokenizer  ranks.tiktoken: 32,768 ids (uint16), EOT 32767" in done.stdout
    assert "an estimate" in done.stdout
    assert "fastokens" in done.stdout
    assert not (tmp_path / "out").exists()
    done = inline.run_command(
        "build", tmp_path / "a.parquet", *tokenizer.flags, "--out", tmp_path / "out", "--shard-tokens", "100M"
    )
    assert done.returncode == 0, done.stderr
    assert "token_count" not in done.stderr + (tmp_path / "out" / ".fineweb-shards" / "log.txt").read_text()


def with_added(folder: Path, *tokens: dict[str, object], normalizer: object = None) -> Path:
    """GPT-2's vocabulary as a `tokenizer.json`, with added tokens."""
    no = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    text = ranks_to_json(vocabularies.gpt2_ranks(), list_merges(vocabularies.gpt2_ranks()), PATTERNS["gpt2"], [])
    added = [{**no, "id": 50256, "content": "<|endoftext|>", "special": True}, *({**no, **t} for t in tokens)]
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(text) | {"added_tokens": added, "normalizer": normalizer, "decoder": None}))
    return path


@pytest.mark.full
@pytest.mark.promise("another vocabulary is exact by its own reference, or refused")
@pytest.mark.parametrize(
    ("tokens", "normalizer", "documents"),
    [
        ([{"id": 50257, "content": "WORD", "single_word": True}], None, ["xWORDy", "a WORD b", "WORD"]),
        (
            [{"id": 50257, "content": "<think_end>", "special": True}, {"id": 50258, "content": "think_"}],
            None,
            ["a <think_end> b", "think_ think_end>"],
        ),
        pytest.param(
            [{"id": 50257, "content": "<x>", "lstrip": True, "rstrip": True}],
            None,
            ["a  <x>  b", "<x><x>"],
            marks=pytest.mark.soak,
        ),
        ([], {"type": "NFC"}, ["a\U0001e2ef\u0323\u0301", "e\u0301 \u0898\u0323", "\u0c5c's"]),
    ],
    ids=["single_word", "special names", "stripping", "NFC"],
)
def test_what_an_engine_would_get_wrong_is_not_left_to_it(
    tmp_path: Path, tokens: list[dict[str, object]], normalizer: object, documents: list[str]
) -> None:
    """Each of these had other tokens with gigatoken alone, and passed a self-test without them."""
    path = with_added(tmp_path, *tokens, normalizer=normalizer)
    judge = vocabularies._judge(path)
    source = write_jsonl(tmp_path / "a.jsonl", documents)
    words = ["build", source, "--tokenizer", path, "--out", tmp_path / "out", "--val-tokens", "0"]
    done = inline.run_command(*words)
    assert done.returncode == 0, done.stderr
    expected = [token for document in documents for token in (50256, *judge(document))]
    assert tokens_in(tmp_path / "out") == expected


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        ([{"id": 50258, "content": "<x>"}, {"id": 50257, "content": "<y>"}], "but the tokenizers library gives it"),
        ([{"id": 60000, "content": "</s>", "special": True}], "gives the added token '</s>' the id 60000"),
    ],
)
def test_ids_that_its_own_library_changes_are_refused(
    tmp_path: Path, tokens: list[dict[str, object]], sentence: str
) -> None:
    """The file would mean something else to whoever reads the shards."""
    path = with_added(tmp_path, *tokens)
    source = write_jsonl(tmp_path / "a.jsonl", ["a document"])
    done = inline.run_command("build", source, "--tokenizer", path, "--out", tmp_path / "out")
    assert (done.returncode, sentence in done.stderr) == (3, True), done.stderr


@pytest.mark.full
@pytest.mark.parametrize(("deaths", "code"), [(1, 0), (2, 0), (9, 9)])
def test_a_trial_that_is_killed_is_tried_again_and_then_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int, code: int
) -> None:
    """As the kernel does for want of memory: the tokens are the same, and the plan says why it is slow."""
    path = write_bytes_json(tmp_path / "tokenizer.json")
    source = write_jsonl(tmp_path / "a.jsonl", ["a document"])
    killed = tmp_path / "killed"
    killed.mkdir()
    (tmp_path / "sitecustomize.py").write_text(
        "import os, pathlib, signal, sys\n"
        f"killed = pathlib.Path({str(killed)!r})\n"
        f"if 'fineweb_shards.tokenizers.trial' in sys.orig_argv and len([*killed.iterdir()]) < {deaths}:\n"
        "    (killed / str(os.getpid())).touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    inline.forget_trials()
    words = ["build", source, "--tokenizer", path, "--out", tmp_path / "out", "--val-tokens", "0"]
    done = inline.run_command(*words)
    assert done.returncode == code, done.stderr
    told = "itself, which is slow: the process that tried faster engines was killed by signal 9, twice"
    assert (told in done.stderr) == (deaths == 2)
    if code:
        assert "each process that tried it died, the last one was killed by signal 9" in done.stderr
    else:
        assert tokens_in(tmp_path / "out") == [256, *vocabularies._judge(path)("a document")]


@pytest.mark.full
def test_nothing_in_the_current_folder_is_imported(tmp_path: Path) -> None:
    """A `tokenizers.py` there is somebody's own."""
    tokenizer = vocabularies.nanochat(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", ["a document"])
    (tmp_path / "tokenizers.py").write_text("raise SystemExit('imported')")
    inline.forget_trials()
    done = inline.run_command(
        "plan", "a.jsonl", *tokenizer.flags, "--shard-tokens", "100M", "--out", "out", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_ids_that_a_layout_can_not_hold_are_refused(tmp_path: Path) -> None:
    """Before anything is written."""
    tokenizer = vocabularies.cl100k(tmp_path)
    path = write_jsonl(tmp_path / "a.jsonl", ["a document"])
    out = tmp_path / "out"
    done = inline.run_command("build", path, *tokenizer.flags, "--layout", "nanogpt", "--out", out)
    assert done.returncode == 2
    assert "its reader takes tokens of 2 bytes, but the 66,001 ids" in done.stderr
    assert not out.exists()


@pytest.mark.promise("a changed source or setting is refused by name")
def test_another_tokenizer_on_resume_is_refused(tmp_path: Path) -> None:
    """Other ranks, another pattern, another EOT: each is named; the same file elsewhere is no other."""
    path = write_jsonl(tmp_path / "a.jsonl", make_documents(60))
    ranks = vocabularies.write_ranks(tmp_path / "a.tiktoken", vocabularies.small_ranks(1000))
    others = vocabularies.write_ranks(tmp_path / "b.tiktoken", vocabularies.small_ranks(999))
    words = ["build", path, "--shard-tokens", "3000", "--out", tmp_path / "out", "--tokenizer"]
    done = inline.run_command(*words, ranks, "--pattern", "cl100k", "--eot", "1000")
    assert done.returncode == 0, done.stderr
    expected = runs.shards_in(tmp_path / "out")
    runs.forget_after(tmp_path / "out", 2)
    for flags, words_ in [
        ([others, "--pattern", "cl100k", "--eot", "1000"], ["a.tiktoken", "b.tiktoken"]),
        ([ranks, "--pattern", "qwen", "--eot", "1000"], ["pattern cl100k", "pattern qwen"]),
        ([ranks, "--pattern", "cl100k", "--eot", "1001"], ["EOT 1000", "EOT 1001"]),
        (["gpt2"], ["a.tiktoken", "gpt2 (50,257 ids"]),
    ]:
        done = inline.run_command(*words, *flags)
        assert done.returncode == 4
        assert all(word in done.stderr for word in words_), done.stderr
    moved = ranks.rename(tmp_path / "moved.tiktoken")
    assert inline.run_command(*words, moved, "--pattern", "cl100k", "--eot", "1000").returncode == 0
    assert runs.shards_in(tmp_path / "out") == expected


@pytest.mark.full
def test_export_keeps_the_vocabulary(tmp_path: Path) -> None:
    """Ids of four bytes in other layouts, which `inspect` can read there, too."""
    tokenizer = vocabularies.cl100k(tmp_path)
    documents = make_documents(40)
    path = write_jsonl(tmp_path / "a.jsonl", documents)
    done = inline.run_command("build", path, *tokenizer.flags, "--out", tmp_path / "in", "--val-tokens", "0")
    assert done.returncode == 0, done.stderr
    for layout in ("llm.c", "megatron", "plain"):
        out = tmp_path / layout
        words = ["export", tmp_path / "in", "--layout", layout, "--out", out, "--val-tokens", "0"]
        done = inline.run_command(*words)
        assert done.returncode == 0, done.stderr
        (name,) = [name for name in runs.outputs_in(out) if name.endswith(".bin")]
        tokens = np.fromfile(out / name, "<u4", offset=1024 if layout == "llm.c" else 0).tolist()
        assert tokens == tokenizer.stream(documents, eot_first=layout == "llm.c")
        assert inline.run_command("inspect", out, "--grep", documents[0].split()[0]).returncode == 0
        assert json.loads((out / "manifest.json").read_text())["vocabulary"]["pattern"] == "cl100k"
