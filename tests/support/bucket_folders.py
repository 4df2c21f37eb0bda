"""A finished folder as it is in a bucket after a build: the same files, and while it grows, its parts."""

from __future__ import annotations

from pathlib import Path

from fineweb_shards.storage.bucket import Bucket


def upload_folder(folder: Path, url: str) -> Bucket:
    """Copy all files of a folder, those of the work folder too, but not its lock."""
    bucket = Bucket(url)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "lock":
            bucket.upload(path, path.relative_to(folder).as_posix())
    return bucket


def part_name(file: str, begin: int) -> str:
    """The name of an object with the bytes of an unfinished file from `begin` on."""
    return f".fineweb-shards/parts/{file}/{begin:016}"


def make_parts(bucket: Bucket, folder: Path, name: str, boundaries: list[int]) -> None:
    """Let a file be in the bucket as parts, as it is while it grows."""
    data = (folder / name).read_bytes()
    for begin, end in zip(boundaries, [*boundaries[1:], len(data)], strict=True):
        bucket.overwrite(part_name(name, begin), data[begin:end])
    bucket.delete([name])
