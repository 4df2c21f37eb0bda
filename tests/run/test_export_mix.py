"""`export --mix`: what is typed, told and recorded. The bytes: tests/exactness/test_export_mix.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards import api
from fineweb_shards.errors import ChangedError
from fineweb_shards.loader import ShardLoader
from fineweb_shards.run.config_sources import parse_mixed
from fineweb_shards.types import Taken
from tests.support import inline, layout_reference, mix_reference, reference, runs
from tests.support.bucket_folders import upload_folder
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.layout_reference import Wanted

TEXTS = [text for text in make_documents(90, seed=71) if "<|endoftext|>" not in text]
WEB, CODE = TEXTS[:50], TEXTS[50:]
SHARD_TOKENS = 2000
WEIGHTS = ({"weight": 7}, {"weight": 3})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished folders, web and code."""
    folder = tmp_path_factory.mktemp("made")
    for name, texts, layout in (("web", WEB, "build-nanogpt"), ("code", CODE, "plain")):
        path = write_jsonl(folder / f"{name}.jsonl", [*texts, None])
        runs.build_inline(folder / name, path, layout=layout, shard_tokens=SHARD_TOKENS)
    return folder


def mixed_texts(*parts: list[str], until: str = "first-exhausted") -> list[str]:
    """The documents in the order of the plain loop, 7 : 3."""
    left = [iter(texts) for texts in parts]
    documents = [[[*reference.encode(text), reference.EOT] for text in texts] for texts in parts]
    return [next(left[part]) for part, _ in mix_reference.mix(documents, (7, 3), until)]


def mixed(layout: str, *parts: list[str], until: str = "first-exhausted", **settings: Any) -> dict[str, bytes]:
    """The files that hold them."""
    settings = {"shard_tokens": SHARD_TOKENS, **settings}
    return layout_reference.files(mixed_texts(*parts, until=until), Wanted(layout, **settings))


def objects(result: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result)
    return found


@pytest.mark.parametrize(("typed", "expected"), [
    ("web=7", ("web", 7, 1)),
    ("web=0.5,epochs=2", ("web", 0.5, 2)),
    ("a=b=7", ("a=b", 7, 1)),
    ("a,b=70%,epochs=1k", ("a,b", 0.7, 1000)),
    ("x,epochs=3=7", ("x,epochs=3", 7, 1)),
    ("s3://bucket/web=1_000", ("s3://bucket/web", 1000, 1)),
])  # fmt: skip
def test_a_folder_its_weight_and_epochs(typed: str, expected: tuple[str, float, int]) -> None:
    """Names may have commas and equals signs."""
    found = parse_mixed(typed)
    assert (found["input"], float(found["weight"]), found["epochs"]) == ((expected[0],), *expected[1:])


def test_the_command_mixes_folders_and_says_how(made: Path, tmp_path: Path) -> None:
    """The bytes of the plain loop; the summary, the JSON, the status and the report name both folders and their
    shares; a second run does nothing; the folder can be verified, looked into and read."""
    out = tmp_path / "out"
    words = ["export", "--mix", f"{made}/web=0.7", "--mix", f"{made}/code=0.3", "--out", out, "--layout", "llm.c"]
    done = inline.run_command(*words)
    assert done.returncode == 0, done.stderr
    assert runs.outputs_in(out) == mixed("llm.c", WEB, CODE)
    assert "(70.00 % requested)" in done.stdout
    result = objects(inline.run_command(*words, "--json").stdout)
    assert result["new_tokens"] == 0
    assert [part["label"] for part in result["parts"]] == ["web", "code"]
    assert [part["requested_share"] for part in result["parts"]] == [0.7, 0.3]
    assert sum(part["tokens"] for part in result["parts"]) == result["tokens"]
    assert sum(part["documents"] for part in result["parts"]) == result["documents"]
    assert "web: " in inline.run_command("status", out).stdout
    for subcommand in ("verify", "inspect", "report"):
        assert inline.run_command(subcommand, out).returncode == 0
    assert "code" in (out / ".fineweb-shards" / "report.html").read_text()
    loader = ShardLoader(out, "train", batch_size=1, seq_len=8)
    assert loader.next_batch()[0].shape == (1, 8)


@pytest.mark.full
def test_the_library_mixes_folders(made: Path, tmp_path: Path) -> None:
    """With the same result, shares included."""
    parts = [{"folder": made / "web", "weight": 7}, {"folder": str(made / "code"), "weight": "3", "epochs": 1}]
    result = api.export(mix=parts, out=tmp_path / "out", layout="llm.c", mix_until="all-exhausted")
    assert runs.outputs_in(tmp_path / "out") == mixed("llm.c", WEB, CODE, until="all-exhausted")
    assert [(part.label, part.exhausted) for part in result.parts] == [("web", True), ("code", True)]


def test_what_the_manifest_records(made: Path, tmp_path: Path) -> None:
    """Each folder's shards and weight, what was taken of each, and the counts of all documents that were read."""
    manifest = runs.export_mix(
        tmp_path / "out", [made / "web", made / "code"], [{"weight": 7}, {"weight": 3, "epochs": 2}],
        mix_until="all-exhausted",
    )  # fmt: skip
    records = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert records["format"] == 5
    web, code = manifest.parts
    assert web.settings == {"folder": "web", "weight": 7, "epochs": 1}
    assert code.settings == {"folder": "code", "weight": 3, "epochs": 2}
    sources = [json.loads((made / name / "manifest.json").read_text()) for name in ("web", "code")]
    shards = [(shard["name"], shard["bytes"], shard["sha256"]) for shard in sources[0]["shards"]]
    assert [(file["name"], file["size_bytes"], file["content_hash"]) for file in web.files] == shards
    assert manifest.taken == (
        Taken(sources[0]["totals"]["tokens"], len(WEB)),
        Taken(2 * sources[1]["totals"]["tokens"], 2 * len(CODE)),
    )
    for name in ("text_bytes", "skipped_documents", "replaced_characters"):
        first, second = (source["totals"][name] for source in sources)
        assert manifest.totals[name] == first + 2 * second
    assert [cursor.file for cursor in manifest.end] == [len(web.files), 2 * len(code.files)]


def test_a_mix_can_be_exported_and_mixed_again(made: Path, tmp_path: Path) -> None:
    """In another layout it is the same stream, also in a mix with itself."""
    runs.export_mix(tmp_path / "out", [made / "web", made / "code"], WEIGHTS, layout="llm.c")
    runs.export(tmp_path / "out", tmp_path / "copy", layout="megatron")
    assert runs.outputs_in(tmp_path / "copy") == mixed("megatron", WEB, CODE)
    runs.export_mix(tmp_path / "twice", [tmp_path / "out"] * 2, WEIGHTS, layout="plain", mix_until="all-exhausted")
    texts = mixed_texts(WEB, CODE)
    assert runs.outputs_in(tmp_path / "twice") == mixed("plain", texts, texts, until="all-exhausted")


def test_a_mix_is_continued_to_another_limit(made: Path, tmp_path: Path) -> None:
    """--max-tokens may grow, as of a build."""
    for limit in (3000, 5001, None):
        manifest = runs.export_mix(
            tmp_path / "out", [made / "web", made / "code"], WEIGHTS, layout="llm.c", max_tokens=limit
        )
        assert runs.outputs_in(tmp_path / "out") == mixed("llm.c", WEB, CODE, max_tokens=limit)
        assert limit in (None, manifest.tokens)


def test_a_mix_that_is_all_validation_is_refused(made: Path, tmp_path: Path) -> None:
    """At its end, when that is certain. The flag that the message names is enough: nothing is finished."""
    words = ["export", "--mix", f"{made}/web=7", "--mix", f"{made}/code=3", "--max-tokens", "1500"]
    done = inline.run_command(*words, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "There would be nothing to train on: by default the first 2,000 tokens go to validation" in done.stderr
    assert "--val-tokens 100" in done.stderr
    done = inline.run_command(*words, "--out", tmp_path / "out", "--val-tokens", "100")
    assert done.returncode == 0, done.stderr
    expected = mixed("build-nanogpt", WEB, CODE, max_tokens=1500, val_tokens=100)
    assert runs.outputs_in(tmp_path / "out") == expected


def test_another_source_is_refused_by_name(made: Path, tmp_path: Path) -> None:
    """Other shards, another order, other weights, or another number of folders; a folder that was renamed is the
    same."""
    folders, out = [made / "web", made / "code"], tmp_path / "out"
    manifest = runs.export_mix(out, folders, WEIGHTS)
    runs.forget_after(out, len(manifest.shards) // 2)
    with pytest.raises(ChangedError, match=r"Part 1 \(code\): its shards have changed"):
        runs.export_mix(out, folders[::-1], WEIGHTS)
    with pytest.raises(ChangedError, match="--weight was 7:3"):
        runs.export_mix(out, folders, WEIGHTS[::-1])
    with pytest.raises(ChangedError, match="2 parts when this folder was begun and has 3 now"):
        runs.export_mix(out, [*folders, made / "web"], [*WEIGHTS, {"weight": 1}])
    with pytest.raises(ChangedError, match="--epochs was 1 when"):
        runs.export_mix(out, folders, [{"weight": 7, "epochs": 2}, {"weight": 3}])
    with pytest.raises(ChangedError):
        runs.export(made / "web", out)
    shutil.copytree(made / "code", tmp_path / "renamed")
    runs.export_mix(out, [made / "web", tmp_path / "renamed"], WEIGHTS)
    assert runs.outputs_in(out) == mixed("build-nanogpt", WEB, CODE)


def test_validation_of_a_folder_stays_apart(made: Path, tmp_path: Path) -> None:
    """Documents that were chosen for it, of one folder, and of the other nothing; unless a flag says otherwise."""
    path = write_jsonl(tmp_path / "val.jsonl", CODE[:4])
    runs.build_inline(
        tmp_path / "apart", path, made / "code.jsonl", val_input=(str(path),), layout="plain", shard_tokens=SHARD_TOKENS
    )
    folders = [made / "web", tmp_path / "apart"]
    runs.export_mix(tmp_path / "kept", folders, WEIGHTS, layout="llm.c")
    found = runs.outputs_in(tmp_path / "kept")
    val = [token for text in CODE[:4] for token in [reference.EOT, *reference.encode(text)]]
    assert found["edu_fineweb_val_000000.bin"][1024:] == reference_bytes(val)
    runs.export_mix(tmp_path / "other", folders, WEIGHTS, layout="llm.c", val_tokens=500)
    assert runs.outputs_in(tmp_path / "other") == mixed("llm.c", WEB, [*CODE[:4], *CODE], val_tokens=500)


def reference_bytes(tokens: list[int]) -> bytes:
    return b"".join(token.to_bytes(2, "little") for token in tokens)


@pytest.mark.full
@pytest.mark.promise("kill -9 loses only the unfinished shard")
def test_a_kill_at_every_file_operation_of_a_mix(made: Path, tmp_path: Path, soak: bool) -> None:
    """It resumes like a build."""
    settings = {"layout": "llm.c", "shard_tokens": 6000}
    tries = runs.crash_everywhere(
        {
            "kind": "mix",
            "input": [str(made / "web"), str(made / "code")],
            "out": str(tmp_path / "out"),
            "settings": settings,
            "resumed": settings,
            "step": 1 if soak else 3,
            "expected": reference.digests(mixed("llm.c", WEB, CODE, shard_tokens=6000)),
        }
    )
    assert tries > 20


@pytest.mark.full
def test_buckets_are_mixed_into_a_bucket(made: Path, bucket_url: str, tmp_path: Path, monkeypatch: Any) -> None:
    """And out of one, with the same bytes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    upload_folder(made / "web", f"{bucket_url}/web")
    parts = ["--mix", f"{bucket_url}/web=7", "--mix", f"{made}/code=3", "--layout", "nanogpt", "--val-tokens", "1500"]
    done = inline.run_command("export", *parts, "--out", f"{bucket_url}/out")
    assert done.returncode == 0, done.stderr
    done = inline.run_command("export", f"{bucket_url}/out", "--out", tmp_path / "out", "--layout", "llm.c")
    assert done.returncode == 0, done.stderr
    assert runs.outputs_in(tmp_path / "out") == mixed("llm.c", WEB, CODE)


@pytest.mark.parametrize(("words", "code", "message", "hint"), [
    (["{web}", "--mix", "{code}=1"], 2, "web and --mix exclude each other.", "To mix this folder too: --mix"),
    ([], 2, "DIR is missing.", "several with --mix DIR=WEIGHT"),
    (["--mix", "{web}=1"], 2, "web: a mix needs several folders.", "Name each with its own --mix"),
    (["--mix", "{web}", "--mix", "{code}=1"], 2, "is not a folder with a weight, such as shards=7", "--help"),
    (["--mix", "{web}=many", "--mix", "{code}=1"], 2, "--mix: 'many' is not a number such as 7", "export --help"),
    (["--mix", "{web}=1,epochs=1.5", "--mix", "{code}=1"], 2, "--mix: '1.5' is not a whole number", "--help"),
    (["--mix", "{web}=1,epochs=0", "--mix", "{code}=1"], 2, "--epochs 0: must be at least 1.", "export --help"),
    (["--mix", "{web}=0", "--mix", "{code}=1"], 2, "Part 1: --weight 0: must be more than 0.", "Leave the part out"),
    (["--mix", "{web}=1", "--mix", "{code}=-1"], 2, "Part 2: --weight -1: must be more than 0.", "Leave the part out"),
    (["--mix", "{web}=1", "--mix", "{code}=1e7"], 2, "Part 1: --weight 1: part 2 has more than a million", "closer"),
    (["{web}", "--mix-until", "all-exhausted"], 2, "--mix-until all-exhausted: only with --mix", "leave it out"),
    (["{web}", "--max-tokens", "1M"], 2, "--max-tokens 1000000: only with --mix or --shuffle.", "leave it out"),
    (["--mix", "{web}=1", "--mix", "{here}/nothing=1"], 3, "nothing: no such folder", "--out of a `build`"),
    (["--mix", "{web}=1,epoch=2", "--mix", "{code}=1"], 2, "web=1,epoch: unknown key 'epoch'.", "epochs=N"),
    (["--mix", "{web}=1", "--mix", "{here}/unfinished=1"], 3, "unfinished: the build is not finished.", "Finish it"),
    (["--mix", "{web}=1", "--mix", "{here}/empty=1"], 3, "empty: it has no documents", "Leave it out"),
    (["--mix", "{web}=1", "--mix", "{here}/only=1"], 3, "only: all its documents are for validation", "Leave it out"),
    (["--mix", "{web}=1", "--mix", "{here}/bytes=1"], 3, "bytes has another vocabulary than ", "--tokenizer"),
    (["--mix", "{web}=1", "--mix", "{here}/out=1"], 2, "that is the folder to export from.", "another --out"),
])  # fmt: skip
def test_each_mistake_has_its_message(
    made: Path, tmp_path: Path, words: list[str], code: int, message: str, hint: str
) -> None:
    """With the exit code and the next step, before anything is written."""
    shutil.copytree(made / "code", tmp_path / "unfinished")
    runs.forget_after(tmp_path / "unfinished", 1)
    shutil.copytree(made / "code", tmp_path / "out")
    runs.build_inline(tmp_path / "empty", write_jsonl(tmp_path / "empty.jsonl", [None]))
    runs.build_inline(tmp_path / "only", write_jsonl(tmp_path / "only.jsonl", ["a", "b"]), val_documents=2)
    before = runs.outputs_in(tmp_path / "out")
    if any("bytes" in word for word in words):
        shutil.copytree(made / "code", tmp_path / "bytes")
        data = json.loads((tmp_path / "bytes" / "manifest.json").read_text())
        data["vocabulary"] |= {"name": "other", "sha256": "0" * 64, "size": 50_300}
        runs.write_manifest(tmp_path / "bytes", data)
    names = {"web": made / "web", "code": made / "code", "here": tmp_path}
    done = inline.run_command("export", *(word.format(**names) for word in words), "--out", tmp_path / "out")
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert hint in done.stderr
    assert runs.outputs_in(tmp_path / "out") == before
