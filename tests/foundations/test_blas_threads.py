"""BLAS threads: as many as asked for within the block, as before after it, and no error where nobody can be asked."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

from numpy_transformer.foundations import blas_threads
from numpy_transformer.foundations.blas_threads import cores, limit_blas_threads


class Library:
    """A BLAS of some maker."""

    def __init__(self, tell, set_to, threads):
        self.threads = threads
        setattr(self, tell, lambda: self.threads)
        setattr(self, set_to, lambda threads: setattr(self, "threads", threads))


@pytest.fixture(autouse=True)
def found_anew():
    blas_threads._functions.cache_clear()
    yield
    blas_threads._functions.cache_clear()


@pytest.fixture(params=[("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
                        ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
                        ("openblas_get_num_threads", "openblas_set_num_threads"),
                        ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads")])
def library(request, monkeypatch):
    library = Library(*request.param, threads=4)
    monkeypatch.setattr(blas_threads, "ctypes", SimpleNamespace(CDLL=lambda name: library))
    return library


@pytest.mark.parametrize("most, threads", [(1, 1), (3, 3), (4, 4), (5, 4)])
def test_at_most_so_many_within_the_block(library, most, threads):
    with limit_blas_threads(most):
        assert library.threads == threads
    assert library.threads == 4


def test_as_many_as_before_after_an_error(library):
    with pytest.raises(KeyError), limit_blas_threads(1):
        raise KeyError
    assert library.threads == 4


def test_the_least_of_all_open_blocks_holds_in_whatever_order_they_end(library):
    one, other, third = limit_blas_threads(2), limit_blas_threads(1), limit_blas_threads(3)
    one.__enter__()
    other.__enter__()
    assert library.threads == 1
    one.__exit__(None, None, None)
    assert library.threads == 1
    third.__enter__()
    other.__exit__(None, None, None)
    assert library.threads == 3
    third.__exit__(None, None, None)
    assert library.threads == 4
    library.threads = 2  # by someone else: not remembered from before
    with limit_blas_threads(3):
        assert library.threads == 2
    assert library.threads == 2


@pytest.mark.parametrize("most", [0, -1, 1.5])
def test_a_limit_that_makes_no_sense_is_refused(library, most):
    with pytest.raises(ValueError, match="^most must be a whole number of at least 1"), limit_blas_threads(most):
        pass
    assert library.threads == 4


def no_library(name):
    raise OSError(f"{name}: cannot open")


@pytest.mark.parametrize("load", [lambda name: SimpleNamespace(), lambda name: SimpleNamespace(MKL_Set_Num_Threads=print), no_library])
def test_where_nobody_can_be_asked_nothing_happens(monkeypatch, load):
    monkeypatch.setattr(blas_threads, "ctypes", SimpleNamespace(CDLL=load))
    with limit_blas_threads(1):
        pass


@pytest.mark.parametrize("allowed, counted, expected", [({3, 5}, 64, 2), (None, 6, 6), (None, None, 1)])
def test_only_cores_that_may_be_used_count(monkeypatch, allowed, counted, expected):
    monkeypatch.setattr(os, "cpu_count", lambda: counted)
    if allowed:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0: allowed}[process], raising=False)
    else:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cores() == expected


@pytest.mark.skipif("openblas" not in np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"], reason="another BLAS")
@pytest.mark.skipif("sys.platform == 'win32'")
def test_this_library_is_found():
    tell, set_to = blas_threads._functions()
    before = tell()
    set_to(2)
    try:
        with limit_blas_threads(1):
            assert tell() == 1
        assert tell() == 2
    finally:
        set_to(before)
