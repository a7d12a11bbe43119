"""The disk cache: keys, concurrent processes, damaged entries, directories that cannot be used, eviction.

Tests named after a case number reproduce a public report of that kind of fault.
"""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kaon import cache as cache_module
from kaon import knobs
from kaon.cache import Cache, CacheWarning, default_directory, make_key, open_cache

KEY = make_key("kernel", "text")
PAYLOAD = bytes(range(256)) * 16


@contextmanager
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def entry_path(cache: Cache, key: str = KEY) -> Path:
    assert cache.directory is not None
    return cache.directory / f"{key}.kaon"


def test_keys_keep_fields_apart() -> None:
    assert make_key("ab", "c") != make_key("a", "bc")
    assert make_key("a") != make_key("a", "")
    assert make_key("a", b"b") == make_key("a", "b")


def test_cache_version_is_part_of_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_key("a")
    monkeypatch.setattr(cache_module, "CACHE_VERSION", cache_module.CACHE_VERSION + 1)
    assert make_key("a") != before


def test_round_trip_and_permissions(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new" / "cache")
    with no_warnings():
        assert cache.load(KEY) is None
        cache.store(KEY, PAYLOAD)
        assert cache.load(KEY) == PAYLOAD
        assert Cache(tmp_path / "new" / "cache").load(KEY) == PAYLOAD
    assert cache.directory is not None
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry_path(cache).stat().st_mode) == 0o600
    assert [entry.key for entry in cache.entries()] == [KEY]
    assert (cache.statistics.hits, cache.statistics.misses, cache.statistics.stores) == (1, 1, 1)


def test_clear(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    for index in range(3):
        cache.store(make_key(str(index)), PAYLOAD)
    assert cache.clear() == 3
    assert cache.entries() == []
    assert cache.load(make_key("0")) is None


# ---- B55: processes that share a directory

WORKER = """
import hashlib, sys, time
from pathlib import Path
from kaon.cache import Cache, make_key
directory, start, rounds, kernels = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
import warnings
warnings.simplefilter("error")
while time.time() < start:
    pass
for turn in range(rounds):
    cache = Cache(Path(directory))
    for kernel in range(kernels):
        key = make_key(str(turn), str(kernel))
        expected = hashlib.sha256(key.encode()).digest() * 64
        found = cache.load(key)
        if found is None:
            cache.store(key, expected)
            found = cache.load(key)
            assert found is not None or REMOVED, key
        assert found is None or found == expected, key
print("done")
"""


def start_worker(directory: Path, *, rounds: int, start: float, removed: bool = False) -> subprocess.Popen[str]:
    program = WORKER.replace("REMOVED", str(removed))
    return subprocess.Popen(
        [sys.executable, "-c", program, str(directory), str(start), str(rounds), "8"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def finish(workers: list[subprocess.Popen[str]]) -> None:
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        assert out == "done\n", err


def test_b55_processes_share_an_empty_directory(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    directory.symlink_to(real)
    start = time.time() + 1.0
    finish([start_worker(directory, rounds=50, start=start) for _ in range(8)])
    names = sorted(path.name for path in real.iterdir())
    assert names == sorted(make_key(str(turn), str(kernel)) + ".kaon" for turn in range(50) for kernel in range(8))


def test_b55_killed_writer_leaves_no_harm(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    victims = [start_worker(directory, rounds=10_000, start=time.time()) for _ in range(2)]
    time.sleep(1.0)
    for victim in victims:
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
    finish([start_worker(directory, rounds=50, start=time.time())])


def test_b55_directory_deleted_meanwhile(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    workers = [start_worker(directory, rounds=200, start=time.time(), removed=True) for _ in range(2)]
    while any(worker.poll() is None for worker in workers):
        subprocess.run(["rm", "-rf", str(directory)], check=False, stderr=subprocess.DEVNULL)
        time.sleep(0.005)
    finish(workers)


def test_b55_threads_share_a_cache(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    failures: list[str] = []

    def work(seed: int) -> None:
        order = list(range(20))
        random.Random(seed).shuffle(order)
        for index in order:
            key = make_key(str(index))
            if cache.load(key) is None:
                cache.store(key, key.encode())
            if cache.load(key) != key.encode():
                failures.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# ---- B56: damaged entries


def truncate_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def truncate_to_half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 0x40
    path.write_bytes(data)


def flip_the_magic(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_full_directory(path: Path) -> None:
    replace_by_directory(path)
    (path / "file").write_text("somebody's")


def replace_by_link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_other_entry(path: Path) -> None:
    other = make_key("other")
    Cache(path.parent).store(other, b"code of another kernel")
    (path.parent / f"{other}.kaon").rename(path)


@pytest.mark.parametrize(
    "damage",
    [
        truncate_to_nothing,
        truncate_to_half,
        flip_a_byte,
        flip_the_magic,
        replace_by_directory,
        replace_by_full_directory,
        replace_by_link,
        replace_by_pipe,
        replace_by_other_entry,
    ],
)
def test_b56_damaged_entry(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    cache = Cache(tmp_path / "cache")
    cache.store(KEY, PAYLOAD)
    damage(entry_path(cache))
    with pytest.warns(CacheWarning, match=f"cache entry .*{KEY}.*compiling it again") as caught:
        assert cache.load(KEY) is None
        assert cache.load(KEY) is None
    assert len(caught) == 1, "one warning, however many times it is read"
    assert cache.statistics.rejected == 2
    with no_warnings():
        cache.store(KEY, PAYLOAD)
        assert Cache(tmp_path / "cache").load(KEY) == PAYLOAD


def test_b56_whole_but_unusable_entry(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    cache.store(KEY, PAYLOAD)
    with pytest.warns(CacheWarning, match="no kernel in it"):
        cache.reject(KEY, "no kernel in it")
    assert cache.statistics.rejected == 1


def test_b56_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "cache")
    cache.store(make_key("before"), PAYLOAD)
    full = Path("/dev/full")
    real_open = os.open

    def open_on_full_disk(path: object, flags: int, *arguments: object, **keywords: object) -> int:
        if str(path).startswith(".tmp-"):
            real_open(path, flags, *arguments, **keywords)  # type: ignore[call-overload]
            return real_open(full, os.O_WRONLY)
        return real_open(path, flags, *arguments, **keywords)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "open", open_on_full_disk)
    with pytest.warns(CacheWarning, match="No space left on device.*KAON_CACHE_DIR"):
        cache.store(KEY, PAYLOAD)
    monkeypatch.undo()
    assert cache.load(KEY) == PAYLOAD, "from memory"
    assert Cache(tmp_path / "cache").load(KEY) is None
    assert cache.directory is not None
    assert not list(cache.directory.glob(".tmp-*")), "the unfinished file is gone"


# ---- B58: directories that cannot be used


def works_from_memory(cache: Cache, reason: str) -> None:
    with pytest.warns(CacheWarning, match=f"{reason}.*stay in memory, set KAON_CACHE_DIR") as caught:
        cache.load(KEY)
        cache.store(KEY, PAYLOAD)
        assert cache.load(KEY) == PAYLOAD
        cache.store(make_key("second"), PAYLOAD)
        assert cache.load(make_key("second")) == PAYLOAD
    assert len(caught) == 1


def test_b58_path_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    path.write_text("not a directory")
    works_from_memory(Cache(path), "Not a directory")
    assert path.read_text() == "not a directory"


def test_b58_parent_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    works_from_memory(Cache(tmp_path / "file" / "below" / "cache"), "Not a directory")


def test_b58_unwritable() -> None:
    # /proc takes no directories even from root, like a read-only mount.
    works_from_memory(Cache(Path("/proc/kaon-cache")), "cannot make /proc/kaon-cache")


def test_b58_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to(tmp_path / "nowhere")
    works_from_memory(Cache(tmp_path / "cache"), "No such file")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777, 0o702])
def test_b58_refuses_a_directory_others_can_write(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "cache"
    Cache(path).store(KEY, PAYLOAD)
    path.chmod(mode)
    cache = Cache(path)
    with pytest.warns(CacheWarning, match=f"can be written by others \\(mode {mode:o}\\).*KAON_CACHE_DIR"):
        assert cache.load(KEY) is None, "code somebody else may have put there"
    works_from_memory(Cache(path), "can be written by others")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_b58_refuses_a_directory_of_another_user(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    Cache(path).store(KEY, PAYLOAD)
    os.chown(path, 65534, 65534)
    works_from_memory(Cache(path), "belongs to user 65534")


def test_b58_spaces_and_non_ascii(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "a b" / "Größe 東京")
    with no_warnings():
        cache.store(KEY, PAYLOAD)
        assert Cache(tmp_path / "a b" / "Größe 東京").load(KEY) == PAYLOAD


def test_b58_relative_directory_survives_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = Cache(Path("cache"))
    cache.store(KEY, PAYLOAD)
    monkeypatch.chdir("/")
    assert cache.load(KEY) == PAYLOAD


def test_b58_default_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/user-cache")
    monkeypatch.setenv("KAON_CACHE_DIR", "/somewhere")
    assert default_directory() == Path("/somewhere")
    monkeypatch.delenv("KAON_CACHE_DIR")
    assert default_directory() == Path("/var/user-cache/kaon")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_directory() == Path("/home/user/.cache/kaon")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_directory() == Path("/home/user/.cache/kaon"), "the XDG specification says to ignore a relative one"


def test_b58_home_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HOME", "XDG_CACHE_HOME", "KAON_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(cache_module, "_open_caches", {})
    with pytest.warns(CacheWarning, match="no home directory.*set KAON_CACHE_DIR") as caught:
        cache = open_cache()
        cache.store(KEY, PAYLOAD)
        assert open_cache().load(KEY) == PAYLOAD
    assert len(caught) == 1


def test_b58_home_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_CACHE_HOME", "KAON_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", "/proc")
    monkeypatch.setattr(cache_module, "_open_caches", {})
    works_from_memory(open_cache(), "cannot make /proc/.cache/kaon")


def test_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("KAON_CACHE", "off")
    monkeypatch.setattr(cache_module, "_open_caches", {})
    with no_warnings():
        open_cache().store(KEY, PAYLOAD)
    assert not (tmp_path / "cache").exists()


# ---- eviction


def test_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    keys = [make_key(str(index)) for index in range(10)]
    writer = Cache(directory)
    for age, key in enumerate(keys):
        writer.store(key, PAYLOAD)
        os.utime(entry_path(writer, key), (1e9 + age, 1e9 + age))
    writer.load(keys[0])  # the oldest store, the latest use
    size = entry_path(writer, keys[0]).stat().st_size
    Cache(directory, size_limit=8 * size).store(make_key("new"), PAYLOAD)
    left = {entry.key for entry in writer.entries()}
    assert left == {make_key("new"), keys[0], *keys[5:]}


def test_stale_temporary_files_are_swept(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    cache.store(KEY, PAYLOAD)
    assert cache.directory is not None
    old, young = cache.directory / ".tmp-1-old", cache.directory / ".tmp-2-young"
    old.write_bytes(b"")
    young.write_bytes(b"")
    os.utime(old, (1e9, 1e9))
    Cache(cache.directory).store(KEY, PAYLOAD)
    assert not old.exists() and young.exists()


def test_problem_says_what_is_wrong(tmp_path: Path) -> None:
    assert Cache(tmp_path / "cache").problem() is None
    assert "cannot make" in (Cache(Path("/proc/kaon")).problem() or "")
    assert "no home directory" in (Cache(None).problem() or "")


def test_knobs_choose_the_directory(tmp_path: Path) -> None:
    knobs.cache.directory = tmp_path / "one"
    first = open_cache()
    assert open_cache() is first
    knobs.cache.directory = tmp_path / "two"
    assert open_cache().directory == tmp_path / "two"
