"""One owner per run directory: on this machine exactly, across machines by heartbeat."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sppo.study import lock
from sppo.study.lock import BusyError, RunLock, is_locked


def test_a_second_owner_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(BusyError, match=f"process {os.getpid()} on"), RunLock(tmp_path):
            pass
    assert not is_locked(tmp_path)
    with RunLock(tmp_path):
        pass


def test_a_killed_owner_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time; from sppo.study.lock import RunLock\n"
        f"with RunLock({str(tmp_path)!r}): print('locked', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        assert is_locked(tmp_path)
        owner.kill()
        owner.wait()
    assert not is_locked(tmp_path)
    with RunLock(tmp_path):
        pass


def pretend_other_machine(directory: Path, silent_for: float) -> None:
    """What a shared directory looks like where another machine's flock is not seen."""
    path = directory / lock.FILE
    path.write_text(json.dumps({"host": "elsewhere", "kernel": "another", "pid": 1, "token": "x"}))
    os.utime(path, (time.time() - silent_for, time.time() - silent_for))


def test_another_machines_heartbeat_is_respected(tmp_path: Path) -> None:
    pretend_other_machine(tmp_path, silent_for=10.0)
    assert is_locked(tmp_path)
    with pytest.raises(BusyError, match="on elsewhere"), RunLock(tmp_path):
        pass


def test_another_machines_silence_is_taken_for_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "SETTLE_SECONDS", 0.0)
    pretend_other_machine(tmp_path, silent_for=2 * lock.SILENCE_SECONDS)
    assert not is_locked(tmp_path)
    with RunLock(tmp_path):
        pass


def test_of_two_that_take_over_at_once_one_gives_way(tmp_path: Path) -> None:
    pretend_other_machine(tmp_path, silent_for=2 * lock.SILENCE_SECONDS)

    def meanwhile() -> None:
        while "elsewhere" in (tmp_path / lock.FILE).read_text():
            time.sleep(0.01)
        pretend_other_machine(tmp_path, silent_for=0.0)

    other = threading.Thread(target=meanwhile)
    other.start()
    with pytest.raises(BusyError, match="on elsewhere"), RunLock(tmp_path):
        pass
    other.join()


def test_an_owner_notices_that_it_was_taken_over_and_leaves_the_lock_alone(tmp_path: Path) -> None:
    with RunLock(tmp_path) as held:
        held.check()
        pretend_other_machine(tmp_path, silent_for=0.0)
        with pytest.raises(BusyError, match="on elsewhere"):
            held.check()
    assert is_locked(tmp_path)


def test_asking_does_not_get_in_the_way(tmp_path: Path) -> None:
    """`status` looks at every lock while runners are starting."""
    asking = True

    def ask() -> None:
        while asking:
            is_locked(tmp_path)

    thread = threading.Thread(target=ask)
    (tmp_path / lock.FILE).touch()
    thread.start()
    try:
        for _ in range(50):
            with RunLock(tmp_path):
                pass
    finally:
        asking = False
        thread.join()


def test_the_heartbeat_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.02)
    with RunLock(tmp_path) as held:
        os.utime(held.path, (0, 0))
        deadline = time.monotonic() + 10.0
        while held.path.stat().st_mtime < 1.0 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert held.path.stat().st_mtime > 1.0
