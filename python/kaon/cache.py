"""The on-disk cache of compiled code: one checksummed file per entry, safe under concurrent processes.

An entry is a byte string under a key made by :func:`make_key` from everything that determines it. Entries are written
to a temporary file in the same directory and renamed, so a reader sees a whole entry or none, whichever process wrote
it and whenever that process dies. Nothing here ever fails a compilation: what cannot be read is a miss, what cannot be
written stays in memory, and each such finding is warned about once.

The directory is private to the user (mode 0700). Its files hold machine code that will run in this process, so a
directory that belongs to somebody else, or that others may write, is refused.

Layout of an entry: 8 bytes magic, 32 bytes SHA-256 over key and payload, 32 bytes key, payload.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kaon import knobs

CACHE_VERSION = 2
"""Part of every key. Raise it when the meaning of an entry changes but nothing else in the key does."""

_MAGIC = b"KAONENT1"
_HEADER_BYTES = len(_MAGIC) + 32 + 32
_SUFFIX = ".kaon"
_TEMPORARY_PREFIX = ".tmp-"
_STALE_SECONDS = 3600.0
_ATTEMPTS = 8


class CacheWarning(RuntimeWarning):
    """Something about the cache directory made an entry, or the whole directory, unusable."""


def make_key(*fields: str | bytes) -> str:
    """SHA-256, in hexadecimal, over the cache version and ``fields``, each preceded by its length.

    The lengths keep ``("ab", "c")`` and ``("a", "bc")`` apart.
    """
    digest = hashlib.sha256()
    for entry in (str(CACHE_VERSION), *fields):
        data = entry.encode() if isinstance(entry, str) else entry
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def default_directory() -> Path | None:
    """``KAON_CACHE_DIR``, else ``$XDG_CACHE_HOME/kaon``, else ``~/.cache/kaon``; None where there is no home.

    As the XDG base directory specification demands, a relative ``XDG_CACHE_HOME`` is ignored.
    """
    if knobs.cache.directory is not None:
        return knobs.cache.directory
    if knobs.cache.user_cache is not None and knobs.cache.user_cache.is_absolute():
        return knobs.cache.user_cache / "kaon"
    if knobs.cache.home is not None:
        return knobs.cache.home / ".cache" / "kaon"
    return None


@dataclass
class Statistics:
    """What a cache did since it was opened."""

    hits: int = 0
    misses: int = 0
    stores: int = 0
    rejected: int = 0
    """Entries that were there but could not be used: damaged, unreadable, not a file."""


@dataclass(frozen=True)
class EntryInfo:
    """One entry of the directory, for listings."""

    key: str
    size: int
    """Bytes on disk."""
    used: float
    """Seconds since the epoch of the last store or load."""


class _Refused(Exception):
    """The directory cannot be used; the message says why."""


@dataclass
class Cache:
    """A directory of entries, or memory alone where ``directory`` is None or turns out unusable.

    Args:
        directory: where entries live; made, with mode 0700, by the first store.
        size_limit: bytes the entries may take together. A store that exceeds it removes the entries that were not used
            for longest, down to nine tenths of it.

    All methods may be called from any thread and never raise for what the file system does.
    """

    directory: Path | None
    size_limit: int = 1 << 30
    statistics: Statistics = field(default_factory=Statistics)

    def __post_init__(self) -> None:
        if self.directory is not None:
            self.directory = Path(os.path.abspath(self.directory))
        self._memory: dict[str, bytes] = {}
        self._warned: set[str] = set()
        self._lock = threading.Lock()
        self._bytes_until_scan = 0

    def load(self, key: str) -> bytes | None:
        """The payload stored under ``key``, or None. Counts as a use of the entry."""
        payload = self._memory.get(key)
        if payload is None and self.directory is not None:
            payload = self._load_file(key)
        with self._lock:
            if payload is None:
                self.statistics.misses += 1
            else:
                self.statistics.hits += 1
        return payload

    def store(self, key: str, payload: bytes) -> None:
        """Keep ``payload`` under ``key``, replacing what was there."""
        with self._lock:
            self.statistics.stores += 1
        if self.directory is None or not self._store_file(key, payload):
            self._memory[key] = payload

    def reject(self, key: str, reason: str) -> None:
        """Report that the payload of ``key``, although whole, could not be used. The next store replaces it."""
        self._count_rejected()
        self._memory.pop(key, None)
        self._warn("entry", f"ignored cache entry {self._path(key)}: {reason}; compiling it again")

    def entries(self) -> list[EntryInfo]:
        """Every entry in the directory, the most recently used first."""
        found = []
        with self._listing() as listing:
            for item in listing:
                if item.name.endswith(_SUFFIX):
                    try:
                        status = item.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if stat.S_ISREG(status.st_mode):
                        found.append(EntryInfo(item.name.removesuffix(_SUFFIX), status.st_size, status.st_mtime))
        return sorted(found, key=lambda entry: (-entry.used, entry.key))

    def clear(self) -> int:
        """Remove every entry and every left-over temporary file. Returns how many entries went."""
        self._memory.clear()
        removed = 0
        with self._listing() as listing:
            for item in listing:
                if item.name.endswith(_SUFFIX) or item.name.startswith(_TEMPORARY_PREFIX):
                    removed += self._remove(item.path) and item.name.endswith(_SUFFIX)
        return removed

    def problem(self) -> str | None:
        """Why the directory cannot be used, or None if it can. Makes the directory where it is missing."""
        if self.directory is None:
            return "no directory is set and there is no home directory"
        try:
            os.close(self._open_directory(create=True))
        except _Refused as refusal:
            return str(refusal)
        except FileNotFoundError as error:
            return f"cannot open {self.directory}: {error.strerror}"
        if not os.access(self.directory, os.W_OK):
            return f"{self.directory} is not writable"
        return None

    # ---- files

    def _path(self, key: str) -> str:
        return os.path.join(str(self.directory), key + _SUFFIX)

    def _open_directory(self, create: bool) -> int:
        """A descriptor of the directory, checked. Every access goes through one, so the check holds for the access.

        Raises FileNotFoundError where there is no directory: never made, or removed by another process meanwhile.
        """
        assert self.directory is not None
        if create:
            try:
                os.makedirs(self.directory.parent, exist_ok=True)
                os.mkdir(self.directory, 0o700)
            except FileExistsError:
                pass
            except OSError as error:
                raise _Refused(f"cannot make {self.directory}: {error.strerror}") from None
        try:
            descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _Refused(f"cannot open {self.directory}: {error.strerror}") from None
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            os.close(descriptor)
            raise _Refused(f"{self.directory} belongs to user {status.st_uid}, not to user {os.geteuid()}")
        if status.st_mode & 0o022:
            os.close(descriptor)
            raise _Refused(f"{self.directory} can be written by others (mode {stat.S_IMODE(status.st_mode):o})")
        return descriptor

    def _load_file(self, key: str) -> bytes | None:
        assert self.directory is not None
        try:
            directory = self._open_directory(create=False)
        except FileNotFoundError:
            return None  # an ordinary first use, not worth a warning
        except _Refused as refusal:
            self._warn_directory(str(refusal))
            return None
        try:
            return self._read_entry(directory, key)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._count_rejected()
            self._warn("entry", f"cannot read cache entry {self._path(key)}: {error.strerror}; compiling it again")
            return None
        except ValueError as error:
            self._count_rejected()
            self._warn("entry", f"damaged cache entry {self._path(key)}: {error}; compiling it again")
            return None
        finally:
            os.close(directory)

    def _read_entry(self, directory: int, key: str) -> bytes:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(key + _SUFFIX, flags, dir_fd=directory)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("not a regular file")
            data = file.read()
            if len(data) < _HEADER_BYTES or data[: len(_MAGIC)] != _MAGIC:
                raise ValueError(f"not a whole entry ({len(data)} bytes)")
            checksum, body = data[len(_MAGIC) : len(_MAGIC) + 32], data[len(_MAGIC) + 32 :]
            if not hmac.compare_digest(checksum, hashlib.sha256(body).digest()):
                raise ValueError("wrong checksum")
            if body[:32] != bytes.fromhex(key):
                raise ValueError("holds the entry of another key")
            with suppress(OSError):  # a read-only directory still serves; only the order of eviction is lost
                os.utime(descriptor)
            return body[32:]

    def _store_file(self, key: str, payload: bytes) -> bool:
        body = bytes.fromhex(key) + payload
        data = _MAGIC + hashlib.sha256(body).digest() + body
        try:
            for attempt in reversed(range(_ATTEMPTS)):
                try:
                    self._write_entry(key, data)
                    break
                except FileNotFoundError:  # somebody removed the directory under us: once more from the start
                    if attempt == 0:
                        raise
        except _Refused as refusal:
            self._warn_directory(str(refusal))
            return False
        except OSError as error:
            self._warn_directory(f"cannot write {self._path(key)}: {error.strerror}")
            return False
        self._bound_size(len(data))
        return True

    def _write_entry(self, key: str, data: bytes) -> None:
        directory = self._open_directory(create=True)
        temporary = f"{_TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o600, dir_fd=directory)
            try:
                with open(descriptor, "wb") as file:
                    file.write(data)
                try:
                    os.replace(temporary, key + _SUFFIX, src_dir_fd=directory, dst_dir_fd=directory)
                except IsADirectoryError:
                    # A directory in the entry's place is moved aside; what it may hold is not ours to delete.
                    aside = f"{temporary}.aside"
                    os.rename(key + _SUFFIX, aside, src_dir_fd=directory, dst_dir_fd=directory)
                    os.replace(temporary, key + _SUFFIX, src_dir_fd=directory, dst_dir_fd=directory)
                    with suppress(OSError):
                        os.rmdir(aside, dir_fd=directory)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=directory)
                raise
        finally:
            os.close(directory)

    def _bound_size(self, written: int) -> None:
        """Evict when over the limit. Listing the directory is paid once per sixteenth of the limit written."""
        with self._lock:
            self._bytes_until_scan -= written
            if self._bytes_until_scan > 0:
                return
            self._bytes_until_scan = self.size_limit // 16
        entries = self.entries()
        total = sum(entry.size for entry in entries)
        if total > self.size_limit:
            for entry in reversed(entries):
                if total <= self.size_limit * 9 // 10:
                    break
                self._remove(self._path(entry.key))
                total -= entry.size
        self._remove_stale_temporaries()

    def _remove_stale_temporaries(self) -> None:
        """Temporary files of writers that were killed; one in use is never an hour old."""
        now = time.time()
        with self._listing() as listing:
            for item in listing:
                if item.name.startswith(_TEMPORARY_PREFIX):
                    try:
                        if now - item.stat(follow_symlinks=False).st_mtime > _STALE_SECONDS:
                            self._remove(item.path)
                    except OSError:
                        continue

    @contextmanager
    def _listing(self) -> Iterator[list[os.DirEntry[str]]]:
        if self.directory is None:
            yield []
            return
        try:
            with os.scandir(self.directory) as scan:
                found = list(scan)
        except OSError:
            found = []
        yield found

    @staticmethod
    def _remove(path: str) -> bool:
        try:
            os.unlink(path)
            return True
        except OSError:
            return False  # already gone, or not ours to remove

    # ---- reports

    def _count_rejected(self) -> None:
        with self._lock:
            self.statistics.rejected += 1

    def _warn_directory(self, reason: str) -> None:
        variable = type(knobs.cache).directory.variable
        self._warn("directory", f"{reason}; compiled kernels stay in memory, set {variable} to a directory of your own")

    def _warn(self, kind: str, message: str) -> None:
        with self._lock:
            if kind in self._warned:
                return
            self._warned.add(kind)
        warnings.warn(message, CacheWarning, stacklevel=2)


_open_caches: dict[tuple[Path | None, int], Cache] = {}
_open_caches_lock = threading.Lock()


def open_cache() -> Cache:
    """The cache the knobs name now: one object per directory and size limit, for the life of the process."""
    directory = default_directory() if knobs.cache.enabled else None
    key = (directory, knobs.cache.size_limit)
    with _open_caches_lock:
        found = _open_caches.get(key)
        if found is None:
            found = _open_caches[key] = Cache(directory, knobs.cache.size_limit)
            if directory is None and knobs.cache.enabled:
                found._warn_directory("there is no home directory to keep compiled kernels in")
    return found
