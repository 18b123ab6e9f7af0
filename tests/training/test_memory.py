"""Memory: what is freed stays with the process, and may be asked for where nobody can answer."""

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest

from numpy_transformer.training import memory
from numpy_transformer.training.memory import keep_freed_memory

glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None) if sys.platform == "linux" else None, "gnu_get_libc_version"),
                           reason="not the GNU C library")

ROUNDS = """
import resource, sys
import numpy as np
from numpy_transformer.training.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory() is True
def a_round():
    return [np.ones(size) for size in [2**18] * 50]  # 100 MB, all dropped at once
for n in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    a_round()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how):
    return int(subprocess.run([sys.executable, "-c", ROUNDS, how], capture_output=True, text=True, check=True).stdout)


@glibc
def test_memory_once_used_is_not_taken_anew():
    assert page_faults("keep") < 100 < page_faults("let go")


@pytest.mark.parametrize("platform, library, answer", [
    ("win32", None, False), ("darwin", SimpleNamespace(), False), ("linux", SimpleNamespace(), False),  # musl has no mallopt
    ("linux", SimpleNamespace(mallopt=lambda name, value: 1), True),
    ("linux", SimpleNamespace(mallopt=lambda name, value: name == -1), False),
    ("linux", SimpleNamespace(mallopt=lambda name, value: name == -3), False)])
def test_it_says_whether_it_was_heard(monkeypatch, platform, library, answer):
    monkeypatch.setattr(memory, "sys", SimpleNamespace(platform=platform))
    monkeypatch.setattr(memory, "ctypes", SimpleNamespace(CDLL=lambda name: library))
    assert keep_freed_memory() is answer
