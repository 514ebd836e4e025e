"""From a data URI to plain local files: paths, folders, globs, hub files, fetched copies; gzip, zstd and Parquet unpacked once.

What lies in a bucket or on the web was fetched before. Unpacked files are kept in the cache under the digest of the packed
bytes and appear whole or not at all.
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast
from urllib.parse import unquote

from blake3 import blake3

from rollout.common.atomic_files import replacing
from rollout.data.packed.parquet import read_lines
from rollout.errors import DataError, DataNotFound
from rollout.models.fetched import find_fetched, is_fetched

FILES_MAX = 100_000
UNPACKED_BYTES_MAX = 1 << 40
PACKED = (".gz", ".zst")
PARQUET = ".parquet"
ENDINGS = (".jsonl", ".ndjson", ".json")


def find_files(uri: str, base_dir: Path, cache_dir: Path) -> tuple[Path, ...]:
    """The files that ``uri`` names, by name, unpacked.

    A relative path starts at ``base_dir`` (the manifest's folder). Raises DataNotFound when nothing
    is there or the place cannot be read from here, HubUnreachable when the hub does not answer.
    """
    if uri.startswith("hf://"):
        found = [_fetch_hub_file(uri)]
    elif is_fetched(uri):
        found = [_find_copy(uri, cache_dir)]
    else:
        found = _find_local(_local_path(uri, base_dir))
    return tuple(_unpack(path, cache_dir) for path in found)


def _find_copy(uri: str, cache_dir: Path) -> Path:
    found = find_fetched(uri, cache_dir)
    if found is None:
        raise DataNotFound(
            f"data {uri} is not in this machine's cache {cache_dir}; rollout plan and rollout run fetch it"
        )
    return found.path


def _local_path(uri: str, base_dir: Path) -> Path:
    scheme, mark, rest = uri.partition("://")
    if not mark:
        return base_dir / Path(uri).expanduser()
    if scheme != "file":
        raise DataNotFound(
            f"data {uri}: {scheme}:// cannot be read by a run on this machine; download the data and "
            f"name the file"
        )
    return Path(rest)


def _find_local(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [p for p in sorted(path.iterdir()) if p.is_file() and _is_records(p)]
        what = f"the folder {path} holds no *.parquet or *.jsonl file"
    elif any(mark in path.name for mark in "*?["):
        found = sorted(p for p in path.parent.glob(path.name) if p.is_file())
        what = f"no file matches {path}"
    else:
        found, what = [], f"data file {path} does not exist"
    if not found:
        raise DataNotFound(f"{what} (relative paths start at the manifest's folder)")
    if len(found) > FILES_MAX:
        raise DataError(f"{path}: {len(found)} files, at most {FILES_MAX} are read")
    return found


def _is_records(path: Path) -> bool:
    plain = path.with_suffix("") if path.suffix in PACKED else path
    return plain.suffix in (*ENDINGS, PARQUET)


def _fetch_hub_file(uri: str) -> Path:
    """``hf://datasets/owner/name/path/in/repository``; ``name@revision`` is one state of it, a ``/`` in it written ``%2F``."""
    from rollout.models.hub.one_file import fetch_data_file

    parts = uri.removeprefix("hf://").removeprefix("datasets/").split("/", 2)
    if len(parts) != 3 or not parts[2]:
        raise DataNotFound(
            f"data {uri}: expected hf://datasets/owner/name/file.jsonl, or name@revision in place of name"
        )
    owner, named, file = parts
    name, pinned, revision = named.partition("@")
    if pinned and not revision:
        raise DataNotFound(f"data {uri}: expected a commit, tag or branch after the @ of {named}")
    return fetch_data_file(f"{owner}/{name}", file, unquote(revision) or None)


def _unpack(path: Path, cache_dir: Path) -> Path:
    """The unpacked file in the cache. One that is there already is compared, byte for byte: others write there too."""
    if path.suffix not in (*PACKED, PARQUET):
        return path
    digest = blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
    kind = "parquet." if path.suffix == PARQUET else ""
    final = cache_dir / "data" / f"{digest}.{kind}jsonl"
    try:
        if final.is_file() and _is_unpacked(path, final):
            return final
        final.parent.mkdir(parents=True, exist_ok=True)
        with replacing(final, durable=False, mode=0o444) as plain:
            plain.writelines(_parts(path))
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"data file {path} cannot be unpacked: {error}") from error
    return final


def _parts(path: Path) -> Iterator[bytes]:
    return _bounded(read_lines(path)) if path.suffix == PARQUET else _unpacked(path)


def _bounded(lines: Iterator[bytes]) -> Iterator[bytes]:
    size = 0
    for line in lines:
        size += len(line)
        if size > UNPACKED_BYTES_MAX:
            raise ValueError(f"it unpacks to more than {UNPACKED_BYTES_MAX >> 20} MiB")
        yield line


def _is_unpacked(path: Path, final: Path) -> bool:
    with final.open("rb") as found:
        same = all(found.read(len(part)) == part for part in _parts(path))
        return same and not found.read(1)


def keep_lines(lines: Iterator[bytes], cache_dir: Path) -> Path:
    """A file of the cache with these lines, named by their digest. Raises DataError for more than fits."""
    folder = cache_dir / "data"
    content = blake3()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".rows-") as beside:
            work = Path(beside, "rows.jsonl")
            with work.open("wb") as plain:
                for line in _bounded(lines):
                    content.update(line)
                    plain.write(line)
            work.chmod(0o444)
            return work.replace(folder / f"{content.hexdigest()}.rows.jsonl")
    except (OSError, ValueError) as error:
        raise DataError(f"rows cannot be kept in {folder}: {error}") from error


def _unpacked(path: Path) -> Iterator[bytes]:
    """The plain bytes, in parts; the bound holds on what comes out, while it comes out."""
    from zstandard import ZstdError

    size = 0
    with path.open("rb") as packed, _open_packed(path.suffix, packed) as plain:
        try:
            while part := plain.read(1 << 20):
                size += len(part)
                if size > UNPACKED_BYTES_MAX:
                    raise ValueError(f"it unpacks to more than {UNPACKED_BYTES_MAX >> 20} MiB")
                yield part
        except ZstdError as error:
            raise OSError(str(error)) from error


def _open_packed(suffix: str, packed: IO[bytes]) -> IO[bytes]:
    if suffix == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=packed))
    from zstandard import ZstdDecompressor

    return ZstdDecompressor().stream_reader(packed, read_across_frames=True)
