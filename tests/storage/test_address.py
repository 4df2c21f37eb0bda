"""Addresses of buckets: what is one, what is refused, and that no secret in one is shown."""

from __future__ import annotations

import pytest

from fineweb_shards.errors import UsageError
from fineweb_shards.storage.bucket_address import BucketAddress, check_path, is_url


@pytest.mark.parametrize(
    ("url", "scheme", "bucket", "prefix"),
    [
        ("s3://bucket", "s3", "bucket", ""),
        ("s3://bucket/", "s3", "bucket", ""),
        ("gs://my.bucket-1/a/b/", "gs", "my.bucket-1", "a/b"),
        ("AZ://$web/a b/é+%20", "az", "$web", "a b/é+%20"),
    ],
)
def test_an_address_is_taken_apart(url: str, scheme: str, bucket: str, prefix: str) -> None:
    """Scheme, bucket and folder are found; a slash at the end says nothing."""
    address = BucketAddress.parse(url)
    assert (address.scheme, address.bucket, address.prefix) == (scheme, bucket, prefix)
    assert BucketAddress.parse(str(address)) == address
    assert is_url(url)


def test_names_are_relative_to_the_folder() -> None:
    """A name and the full name in the bucket are each other's inverse."""
    folder = BucketAddress.parse("s3://bucket/a")
    assert str(folder.child("b/c")) == "s3://bucket/a/b/c"
    assert folder.name_of(folder.key("b/c")) == "b/c"
    assert BucketAddress.parse("s3://bucket").key("x") == "x"
    assert folder.key("") == "a"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://", "no bucket"),
        ("s3:///folder", "no bucket"),
        ("s3://bad bucket/x", "not a valid bucket name"),
        ("s3://bucket/a/../b", "'..'"),
        ("s3://bucket/a//b", "''"),
        ("s3://bucket/a?versionId=1", "question mark"),
        ("s4://bucket/a", "no known object store"),
        ("bucket/a", "without a scheme"),
    ],
)
def test_what_is_no_address_is_refused_with_the_next_step(url: str, words: str) -> None:
    """The sentence says what is wrong, and the hint shows an address."""
    with pytest.raises(UsageError) as caught:
        BucketAddress.parse(url)
    assert words in caught.value.message
    assert caught.value.hint


def test_other_names_of_a_store_are_known() -> None:
    """Hadoop's and Azure's names lead to ours."""
    for url, ours in (("s3a://b/x", "s3://"), ("abfss://b/x", "az://"), ("gcs://b", "gs://"), ("ss3://b", "s3://")):
        with pytest.raises(UsageError) as caught:
            BucketAddress.parse(url)
        assert f"Did you mean {ours}?" in caught.value.hint


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIA:canary@bucket/a",
        "s3://canary@bucket/a",
        "s3://bucket/a?X-Amz-Signature=canary",
        "az://container/a?sv=2024&sig=canary",
        "s3://bucket/a?x=1&Signature=canary",
    ],
)
def test_credentials_in_an_address_are_refused_and_not_shown(url: str) -> None:
    """Neither message nor hint repeats what may be a secret."""
    with pytest.raises(UsageError) as caught:
        BucketAddress.parse(url)
    assert "canary" not in caught.value.message + caught.value.hint
    assert "credentials" in caught.value.message


def test_a_path_is_no_address() -> None:
    """Files keep their meaning, whatever they are called."""
    assert not is_url("s3/bucket")
    assert not is_url("./s3://x")
    assert is_url("s4://x")


@pytest.mark.parametrize(
    ("text", "meant"), [("s3:/bucket/folder", "s3://bucket/folder"), ("S3:bucket", "s3://bucket"), ("gcs:/b", "gs://b")]
)
def test_what_is_nearly_an_address_is_no_path(text: str, meant: str) -> None:
    """It would become a folder on this machine, and nobody would notice until the training."""
    with pytest.raises(UsageError) as caught:
        check_path(text)
    assert f"Did you mean {meant}?" in caught.value.hint


@pytest.mark.parametrize("path", ["s3", "./s3:/b", "folder/s3:/b", "C:/data", "C:\\data", "s3-shards", "s3://b/c"])
def test_paths_stay_paths(path: str) -> None:
    """Whatever else has a colon in it."""
    check_path(path)
