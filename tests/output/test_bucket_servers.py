"""Other programs that speak S3 than the one of all other tests: with and without conditional writes."""

from __future__ import annotations

import uuid
from fractions import Fraction
from pathlib import Path

import boto3
import pytest

from fineweb_shards.errors import LockedError, NetworkError
from fineweb_shards.events import Observer
from fineweb_shards.output import bucket_work_folder
from fineweb_shards.output.opening import open_store
from fineweb_shards.storage.bucket import Bucket
from tests.support import layout_reference, runs
from tests.support.bucket_server import forget_everything
from tests.support.bucket_view import is_output
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.layout_reference import Wanted

pytestmark = pytest.mark.full

DOCUMENTS = make_documents(36, seed=98)


@pytest.fixture
def out(second_endpoint: str, bucket_environment: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of a new bucket of another server."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "S3RVER")  # the only ones that s3rver knows; MiniStack takes any
    monkeypatch.setenv("AWS_ENDPOINT_URL", second_endpoint)
    monkeypatch.setattr(bucket_work_folder, "BEAT_SECONDS", 0.2)
    forget_everything(monkeypatch)
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    boto3.client("s3").create_bucket(Bucket=name)
    return f"s3://{name}/folder"


def outputs(out: str) -> dict[str, bytes]:
    bucket = Bucket(out)
    names = [info.name for info in bucket.list() if is_output(info.name)]
    return {name: found[0] for name in names if (found := bucket.read(name)) is not None}


@pytest.mark.promise("a bucket never shows half a shard; only one writer wins")
@pytest.mark.parametrize(
    "wanted",
    [Wanted("megatron", 6000, val_tokens=7000), Wanted("llm.c", 6000, val_ratio=Fraction(2, 5))],
    ids=lambda wanted: wanted.layout,
)
def test_the_same_bytes(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Wanted) -> None:
    """Stopped by an outage in the middle, and resumed."""
    source = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    settings = {"engine": "tiktoken", "max_outage": 1, "batch_bytes": 2048, **wanted.settings()}
    send = Bucket.upload_file
    uploads = 0

    def fail_later(self: Bucket, *arguments: object) -> object:
        nonlocal uploads
        uploads += 1
        if uploads == 4:
            raise NetworkError("gone")
        return send(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Bucket, "upload_file", fail_later)
    with pytest.raises(NetworkError):
        runs.build_inline(out, source, scratch=str(tmp_path / "scratch"), **settings)
    runs.build_inline(out, source, scratch=str(tmp_path / "scratch"), **settings)
    assert outputs(out) == layout_reference.files(DOCUMENTS, wanted)
    left = [info.name for info in Bucket(out).list()]
    assert not [name for name in left if "parts" in name or "lock" in name or "probe" in name]


@pytest.mark.promise("a bucket never shows half a shard; only one writer wins")
def test_a_second_writer_is_refused(out: str, tmp_path: Path) -> None:
    """Whether the store knows conditions or not."""
    first, second = (open_store(out, str(tmp_path / name), 20, Observer()) for name in "ab")
    with first.lock(Observer()):
        first.save_manifest(b"1")
        with pytest.raises(LockedError), second.lock(Observer()):
            pytest.fail("both have the lock")
        stale = open_store(out, str(tmp_path / "c"), 20, Observer())
        with pytest.raises(LockedError):
            stale.save_manifest(b"2")  # it has not seen the first one
        first.save_manifest(b"3")
