"""Debian's documentation packages: fetch them, and read the pages in them.

Nothing is installed or unpacked to the disk; the packages stay in the folder, so that the next corpus is made of the
same text.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

# Manuals with much prose in them, of Debian 12; doc-rfc-… are in its section non-free. What another release does not
# have, or a machine's list of sources, is left out, and named.
NAMES = (Path(__file__).parent / "packages.txt").read_text().split()
PAGES = (".html", ".htm", ".xhtml", ".txt", ".rst", ".md", ".pod", ".dict")
# Sources of pages that are there as well, and pages that list others.
LEFT_OUT = ("/_sources/", "/_modules/", "/src/", "genindex", "py-modindex", "searchindex", "index-all", "changelog")
LARGEST_BYTES = 64 * 2**20
MISSING = """{programs} not found: the benchmark's text comes from Debian's documentation packages.
Either run this on Debian or Ubuntu (a container will do), or measure with your own files, best one of
FineWeb-Edu's:  make bench ARGS='--files FILE.parquet'"""


def fetch_packages(folder: Path) -> list[Path]:
    """The packages' files in a fixed order; those that are not in `folder` yet are downloaded."""
    missing = [program for program in ("apt-get", "dpkg-deb") if not shutil.which(program)]
    if missing:
        sys.exit(MISSING.format(programs=" and ".join(missing)))
    folder.mkdir(parents=True, exist_ok=True)
    download_packages(folder, [name for name in sorted(NAMES) if not find_package(folder, name)])
    found = [file for name in sorted(NAMES) if (file := find_package(folder, name))]
    if not found:
        sys.exit("No package could be downloaded. Is there a network? Run `apt-get update` (as root) first.")
    return found


def find_package(folder: Path, name: str) -> Path | None:
    return min(folder.glob(f"{name}_*.deb"), default=None)


def download_packages(folder: Path, names: list[str]) -> None:
    """Download packages in one go, because apt takes a second to begin; name those that it does not have."""
    listed = subprocess.run(["apt-cache", "madison", *names], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    known = {line.split()[0] for line in listed.stdout.decode().splitlines()}
    for name in sorted({*names} - known):
        print(f"  {name}: not available here, left out", file=sys.stderr)
    here = [name for name in names if name in known]
    if here:
        print(f"  downloading {len(here)} packages", file=sys.stderr)
        # As the user that runs this: apt's own may not write into the folder, and warns about it.
        subprocess.run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *here], cwd=folder)


def read_pages(package: Path) -> Iterator[tuple[str, str]]:
    """Name and content of every page in a package."""
    words = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE) as unpacked,
        tarfile.open(fileobj=unpacked.stdout, mode="r|") as archive,
    ):
        for member in archive:
            name = member.name.removesuffix(".gz").removesuffix(".dz")
            if member.isfile() and is_page(name) and member.size <= LARGEST_BYTES:
                file = archive.extractfile(member)
                assert file is not None
                data = file.read() if name == member.name else gzip.decompress(file.read())
                if b"\0" not in data:
                    yield name, data.decode("utf-8", "ignore")


def is_page(name: str) -> bool:
    return name.endswith(PAGES) and not any(part in name for part in LEFT_OUT)
