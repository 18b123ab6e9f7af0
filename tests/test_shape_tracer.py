"""The shape tracer itself is tried on small pages, right ones and wrong ones, before the book relies on it."""

import importlib.util
import textwrap

import numpy as np
import pytest

import shape_tracer
from shape_tracer import parse_shapes, unify, verify

LETTERS = {"B": 2, "T": 5, "S": 7, "D": 12, "K": 4}

SOFTMAX = '''
    import numpy as np

    def softmax(x):
        e = np.exp(x - x.max(axis=-1, keepdims=True))  # (..., N)  the shift cancels; exp cannot overflow
        y = e / e.sum(axis=-1, keepdims=True)          # (..., N)

        def backward(dy):                              # (..., N)
            inner = (dy * y).sum(axis=-1, keepdims=True)  # (..., 1)
            return y * (dy - inner)                    # (..., N)

        return y, backward
'''

LAYER_NORM = '''
    from dataclasses import dataclass, replace
    import numpy as np

    @dataclass(frozen=True, eq=False)
    class LayerNorm:
        gain: np.ndarray   # (D,)  γ
        shift: np.ndarray  # (D,)  β
        epsilon: float = 1e-5

        def __call__(self, x):
            centred = x - x.mean(axis=-1, keepdims=True)           # (..., D)
            variance = (centred**2).mean(axis=-1, keepdims=True)   # (..., 1)
            inverse_std = 1 / np.sqrt(variance + self.epsilon)     # (..., 1)
            x_hat = centred * inverse_std                          # (..., D)
            y = self.gain * x_hat + self.shift                     # (..., D)

            def backward(dy):                                      # (..., D)
                rows = tuple(range(dy.ndim - 1))
                dx_hat = dy * self.gain                            # (..., D)
                along_mean = dx_hat.mean(axis=-1, keepdims=True)   # (..., 1)
                along_x_hat = (dx_hat * x_hat).mean(axis=-1, keepdims=True)  # (..., 1)
                dx = inverse_std * (dx_hat - along_mean - x_hat * along_x_hat)  # (..., D)
                gradient = replace(self, gain=(dy * x_hat).sum(rows), shift=dy.sum(rows))
                return gradient, dx

            return y, backward
'''


@pytest.fixture
def page(tmp_path):
    """Return a function that makes a module of a source text."""
    def make(source):
        path = tmp_path / f"page{len(list(tmp_path.iterdir()))}.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    return make


@pytest.fixture
def report_of(page):
    """Return a function that traces run(module) over a source text."""
    def trace(source, run, **letters):
        module = page(source)
        return verify([module], lambda: run(module), letters=letters or LETTERS)
    return trace


def zeros(*shape):
    return np.zeros(shape)


def both_passes(f, x):
    y, backward = f(x)
    backward(np.ones_like(y))


def found(report):
    """The report as counts: verified, mismatched, unreached, untied, uncommented."""
    return tuple(map(len, (report.verified, report.mismatched, report.unreached, report.untied, report.uncommented())))


# ---------------------------------------------------------------- shapes

@pytest.mark.parametrize("text, count", [
    ("# (B, H, T, S)", 1), ("# (D,)  γ", 1), ("# ()", 1), ("# (...)", 1), ("# (…, D)", 1), ("# (B, 1, 1, S)  why", 1),
    ("# (B·T, 3·D)", 1), ("# (T + 1, 2D)", 1), ("# (D // 2,)", 1), ("# ((T + 1) * 2, D)", 1), ("# (length, width)", 1),
    ("# (B, T, D), (B, S, D), (B, S, D)  q, k, v", 3), ("# (D,), ()", 2), ("# (B, T) (not a second shape)", 1),
    ("# subtract the maximum", 0), ("# (D)", 0), ("# (see the page on masks)", 0), ("# (N − 1) rows", 0),
    ("# (..., ...)", 0), ("# (f(x), D)", 0), ("# (0.5, D)", 0), ("#", 0),
])
def test_what_reads_as_a_shape(text, count):
    assert len(parse_shapes(text)) == count


@pytest.mark.parametrize("text, actual, known, bound", [
    ("(B, T)", (2, 5), LETTERS, {}),
    ("(B, T)", (5, 2), LETTERS, None),
    ("(..., D)", (2, 5, 12), LETTERS, {}),
    ("(..., D)", (12,), LETTERS, {}),
    ("(..., D)", (), LETTERS, None),
    ("(...)", (), {}, {}),
    ("(B, ..., D)", (2, 5, 12), LETTERS, {}),
    ("(B, ..., D)", (2, 5, 4), LETTERS, None),
    ("()", (), {}, {}),
    ("()", (1,), {}, None),
    ("(D,)", (12, 1), LETTERS, None),
    ("(..., 1)", (5, 1), {}, {}),
    ("(..., 1)", (5, 2), {}, None),
    ("(B·T, 3D)", (10, 36), LETTERS, {}),
    ("(B·T, 3D)", (10, 12), LETTERS, None),
    ("(T + 1, D / 2)", (6, 6), LETTERS, {}),
    ("(N, M)", (3, 4), {}, {"N": 3, "M": 4}),
    ("(N, N)", (3, 4), {}, None),
    ("(N + 1, N)", (4, 3), {}, {"N": 3}),
    ("(N + 1, N)", (4, 4), {}, None),
    ("(N − 1,)", (4,), {}, {"N": 5}),
    ("(N // 2,)", (4,), {}, {}),          # 8 or 9: fits, settles nothing
    ("(2·N,)", (5,), {}, None),
    ("(N·M,)", (6,), {}, None),           # two unknown letters in one axis would check nothing
    ("(N·M, M)", (6, 2), {}, {"N": 3, "M": 2}),
])
def test_unification(text, actual, known, bound):
    assert unify(parse_shapes(text)[0], actual, known) == bound


# ---------------------------------------------------------------- right pages

@pytest.mark.parametrize("shape", [(12,), (5, 12), (2, 5, 12)])
def test_softmax_is_verified(report_of, shape):
    assert found(report_of(SOFTMAX, lambda m: both_passes(m.softmax, zeros(*shape)))) == (5, 0, 0, 0, 0)


def test_layer_norm_is_verified(report_of):
    run = lambda m: both_passes(m.LayerNorm(zeros(12), zeros(12)), zeros(2, 5, 12))
    assert found(report_of(LAYER_NORM, run)) == (12, 0, 0, 0, 0)


def test_every_comment_of_a_function_can_be_made_wrong(report_of):
    """A tracer that passes anything would pass the book: spoil each comment of softmax in turn."""
    lines = SOFTMAX.splitlines()
    places = [i for i, line in enumerate(lines) if "# (" in line]
    for i in places:
        wrong = "(..., N, 1)" if "N)" in lines[i] else "(..., N)"
        spoilt = "\n".join([*lines[:i], lines[i].split("# (")[0] + "# " + wrong, *lines[i + 1:]])
        report = report_of(spoilt, lambda m: both_passes(m.softmax, zeros(5, 12)))
        assert any(f":{i + 1}: " in line for line in report.mismatched), lines[i]


# ---------------------------------------------------------------- what is found wrong

def function(body, arguments="x"):
    return f"import numpy as np\ndef f({arguments}):\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")


@pytest.mark.parametrize("comment", ["(B, T, K)", "(T, B, D)", "(B, D)", "(B, T, D, 1)", "(..., T)", "(B·T, D)", "()"])
def test_wrong_letter_order_or_rank(report_of, comment):
    report = report_of(function(f"y = x + 1  # {comment}\nreturn y"), lambda m: m.f(zeros(2, 5, 12)))
    assert found(report) == (0, 1, 0, 0, 0)
    assert f":3: {comment}" in report.mismatched[0] and "the array has shape (2, 5, 12)" in report.mismatched[0]


def test_one_wrong_execution_among_right_ones(report_of):
    source = function("for rows in x:\n    y = rows + 1  # (T,)")
    assert found(report_of(source, lambda m: m.f([zeros(5), zeros(5)]))) == (1, 0, 0, 0, 0)
    assert found(report_of(source, lambda m: m.f([zeros(5), zeros(7)]))) == (0, 1, 0, 0, 0)


def test_unreached(report_of):
    source = function("""
        if x is None:
            y = np.zeros(5)  # (T,)
        n = None             # (T,)  never an array
        return x             # (B, T)
    """)
    report = report_of(source, lambda m: m.f(zeros(2, 5)))
    assert [line.split(":")[1] for line in report.unreached] == ["4", "5"]
    assert len(report.verified) == 1


def test_a_line_that_raises_is_not_reached(report_of):
    source = function("""
        y = x + 1        # (B, T)
        try:
            y = x[99]    # (T,)
        except IndexError:
            pass
        return y + 1     # (B, T)
    """)
    assert found(report_of(source, lambda m: m.f(zeros(2, 5)))) == (2, 0, 1, 0, 0)


def test_untied(report_of):
    source = function("""
        if x is None:    # (B, T)
            pass         # (B, T)
        y = x            # (T)  a shape of one axis needs its comma
        z = x            # (B, T of a kind)
        return x[0]      # subtracts nothing (B, T)
    """)
    report = report_of(source, lambda m: m.f(zeros(2, 5)))
    assert [line.split(":")[1] for line in report.untied] == ["3", "4", "5", "6"]


def test_uncommented(report_of):
    source = function("""
        y = x + 1
        total = y.sum()
        z, n = y.T, 3
        y[0] = 0
        y += 1
        def inner(a):
            return a * 2
        inner(y)
        w: np.ndarray = x
        return w, y @ z
    """)
    report = report_of(source, lambda m: m.f(zeros(2, 5)))
    names = [line.split(": ", 1)[1] for line in report.uncommented()]
    assert names == ["y (2, 5)", "z (5, 2)", "a (2, 5)", "return a * 2 (2, 5)", "w (2, 5)", "return y @ z (2, 2)"]
    assert report.uncommented(report.pages[0].module) == report.uncommented() != report.uncommented(np)


def test_a_docstring_that_tells_what_is_returned_covers_the_return(report_of):
    source = function('"""Add one. Returns y (B, T)."""\nreturn x + 1')
    assert found(report_of(source, lambda m: m.f(zeros(2, 5)))) == (1, 0, 0, 0, 0)


# ---------------------------------------------------------------- statements

def test_tuples_share_a_shape_or_have_one_each(report_of):
    source = function("""
        a, b = x, x + 1                    # (B, T)
        a, b = x, x.T                      # (B, T), (T, B)
        a, f, b = x, print, x.T            # (B, T), (T, B)
        (a, b), c = (x, x.T), x[0]         # (B, T), (T,)  wrong: the first target holds two arrays
        a, b = x, x.T                      # (B, T), (T, B), (T,)
        a, n = x, 3                        # (B, T)
        a, n = x, 3                        # (B, T), ()
        return b, print, a                 # (T, B), (B, T)
    """)
    report = report_of(source, lambda m: m.f(zeros(2, 5)))
    assert [line.split(":")[1] for line in report.mismatched] == ["6", "7"]
    assert "3 shapes for 2 arrays" in report.mismatched[1]
    assert len(report.verified) == 6


def test_other_statements(report_of):
    source = function("""
        y = np.zeros_like(x)               # (B, T)
        np.multiply(x, 2, out=y)           # (B, T)
        np.add.at(y, 0, 1)                 # (B, T)
        y.sort()                           # (B, T)
        y[0] = 1                           # (T,)
        y += 1                             # (B, T)
        for row in y:                      # (T,)
            row[...] = 0                   # (T,)
        table = {"y": y}                   # (B, T)
        table["y"] = y                     # (B, T)
        mean: float = float(y.mean())      # ()
        with np.errstate(all="raise"):
            return mean                    # ()
    """)
    assert found(report_of(source, lambda m: m.f(zeros(2, 5)))) == (12, 0, 0, 0, 0)


def test_generators(report_of):
    source = function("""
        for row in x:                      # (T,)
            doubled = row * 2              # (T,)
            yield doubled
            halved = row / 2               # (T,)
    """)
    assert found(report_of(source, lambda m: list(m.f(zeros(2, 5))))) == (3, 0, 0, 0, 0)


def test_statements_of_several_lines(report_of):
    source = function("""
        y = np.add(                        # (B, T)
            x,
            x)                             # (B, T)
        y = np.add(
            x,                             # (B, T)  means nothing
            x,
        )
        return (
            y,                             # (B, T)
            y.T,                           # (T, B)
        )
    """)
    assert found(report_of(source, lambda m: m.f(zeros(2, 5)))) == (4, 0, 1, 0, 0)


def test_arguments(report_of):
    source = '''
    def one(x, y, scale=2.0):  # (B, T)
        return x
    def each(self, x, y, mask=None, scale=2.0):  # (B, T), (T, B), (T,)
        return x
    def lines(
        x,             # (B, T)
        y=None,        # (T, B)
        *,
        scale=2.0,     # ()
    ):
        return x
    '''
    def run(m):
        m.one(zeros(2, 5), zeros(2, 5))
        m.each(None, zeros(2, 5), zeros(5, 2))
        m.lines(zeros(2, 5), zeros(5, 2))
    assert found(report_of(source, run)) == (5, 0, 0, 0, 0)
    assert len(report_of(source, lambda m: m.one(zeros(2, 5), zeros(5, 2))).mismatched) == 1
    assert len(report_of(source, lambda m: m.each(0, zeros(2, 5), zeros(5, 2), zeros(7))).mismatched) == 1
    assert len(report_of(source, lambda m: m.lines(zeros(2, 5), zeros(2, 5))).mismatched) == 1


def test_fields_of_a_named_tuple(report_of):
    source = '''
    from typing import NamedTuple
    import numpy as np
    class Batch(NamedTuple):
        source: np.ndarray  # (B, S)
        target: np.ndarray  # (B, T)
    '''
    report = report_of(source, lambda m: m.Batch(zeros(2, 7), target=zeros(2, 7)))
    assert found(report) == (1, 1, 0, 0, 0)
    assert report.pages[0].module.Batch(1, 2) == (1, 2)


def test_fields(report_of):
    right, wrong = (lambda m: m.LayerNorm(zeros(12), zeros(12))), (lambda m: m.LayerNorm(zeros(12), zeros(4)))
    assert found(report_of(LAYER_NORM, right)) == (2, 0, 10, 0, 0)
    assert found(report_of(LAYER_NORM, wrong)) == (1, 1, 10, 0, 0)
    free = LAYER_NORM.replace("(D,)", "(P,)")
    assert found(report_of(free, wrong))[:2] == (1, 1)  # P has one size within one instance
    def two(m):
        m.LayerNorm(zeros(12), zeros(12)), m.LayerNorm(zeros(4), zeros(4))
    assert found(report_of(free, two))[:2] == (2, 0)    # and may have another in the next


# ---------------------------------------------------------------- letters

CLOSURE = function("""
    y = x * 1                     # (M, N)
    def backward(dy):             # (M, N)
        total = dy.sum(axis=0)    # (N,)
        return dy + total         # (M, N)
    return y, backward
""")


def test_a_free_letter_has_one_size_within_a_call_and_its_closure(report_of):
    def right(m):
        first, second = m.f(zeros(3, 4))[1], m.f(zeros(5, 6))[1]
        first(zeros(3, 4)), second(zeros(5, 6)), first(zeros(3, 4))
    assert found(report_of(CLOSURE, right)) == (4, 0, 0, 0, 0)
    assert len(report_of(CLOSURE, lambda m: m.f(zeros(3, 4))[1](zeros(5, 4))).mismatched) == 2
    closed = CLOSURE.replace("dy + total", "dy + total * (y.ndim > 0)")  # now told apart by what it closes over
    assert found(report_of(closed, right)) == (4, 0, 0, 0, 0)
    def crossed(m):
        first, second = m.f(zeros(3, 4))[1], m.f(zeros(5, 4))[1]
        first(zeros(5, 4))
    assert len(report_of(closed, crossed).mismatched) == 2


def test_a_nested_function_called_before_its_parent_returns(report_of):
    source = function("""
        y = x * 1            # (M, N)
        def rows(a):         # (A, N)
            return a * 1     # (A, N)
        rows(x[:1])
        return rows(x)       # (M, N)
    """)
    assert found(report_of(source, lambda m: m.f(zeros(3, 4)))) == (4, 0, 0, 0, 0)


def test_a_loop_over_blocks_sets_a_letter_anew(report_of):
    source = function("""
        for start in range(0, len(x), 4):
            block = x[start : start + 4]  # (M, N)
            twice = block.T * 2           # (N, M)
        def backward(dy):
            for start in range(0, len(x), 4):
                block = dy[start : start + 4] * x.ndim  # (M, N)
        return backward
    """)
    for rows in (12, 9):  # the last block may be smaller
        report = report_of(source, lambda m: m.f(zeros(rows, 3))(zeros(rows, 3)))
        assert found(report) == (3, 0, 0, 0, 1)  # dy tells no shape
    assert len(report_of(source, lambda m: m.f(zeros(9, 3))(zeros(9, 2))).mismatched) == 1
    wrong = source.replace("block.T * 2 ", "block.T[:, :2]")
    assert len(report_of(wrong, lambda m: m.f(zeros(12, 3))).mismatched) == 1


def test_whole_number_variables_are_letters_and_fixed_letters_go_before(report_of):
    source = function("return np.zeros((length, N))  # (length, N)", "length, N")
    assert found(report_of(source, lambda m: m.f(3, 4))) == (1, 0, 0, 0, 0)
    swapped = source.replace("# (length, N)", "# (N, length)")
    assert found(report_of(swapped, lambda m: m.f(3, 4))) == (0, 1, 0, 0, 0)
    assert found(report_of(source, lambda m: m.f(3, 4), N=5)) == (0, 1, 0, 0, 0)


def test_a_letter_may_be_freed_for_a_function_and_what_is_nested_in_it(page):
    module = page("""
        def outer(x):
            def inner(y):  # (T,)
                return y   # (T,)
            return inner(x)
        def other(x):
            return x       # (T,)
    """)
    def run():
        module.outer(zeros(9)), module.other(zeros(9))
    assert found(verify([module], run, letters=LETTERS))[:2] == (0, 3)
    run.free = {"outer": "TS"}
    assert found(verify([module], run, letters=LETTERS))[:2] == (2, 1)


def test_runs_may_bring_their_own_letters_and_pages(page):
    one, other = page(function("return x  # (T,)")), page(function("return x  # (T,)"))
    run_one, run_other = (lambda: (one.f(zeros(5)), other.f(zeros(99)))), (lambda: other.f(zeros(7)))
    run_one.pages, run_other.letters = [one], {"T": 7}
    assert found(verify([one, other], run_one, run_other, letters=LETTERS)) == (2, 0, 0, 0, 0)


# ---------------------------------------------------------------- docstrings

def test_docstrings(report_of):
    source = function('''
        """Scale rows (the default).

        x : ndarray of shape (B, T, D)
        q: ndarray of shape (B, S)
        Takes v (..., K) and a mask that broadcasts to (B, T); returns y (B, D) and w (never, checked).
        """
        return x[:, 0], x
    ''', "x, q, v=None")
    def run(x, q, v):
        return found(report_of(source, lambda m: m.f(x, q, v)))
    assert run(zeros(2, 5, 12), zeros(2, 7), zeros(4)) == (4, 0, 0, 0, 0)
    assert run(zeros(2, 5, 12), zeros(2, 7), None) == (3, 0, 1, 0, 0)
    assert run(zeros(2, 7, 12), zeros(2, 5), zeros(5)) == (1, 3, 0, 0, 0)
    assert run(zeros(2, 5, 1), zeros(2, 7), zeros(4)) == (2, 2, 0, 0, 0)  # x and y


def test_docstring_of_a_class_is_about_call_and_fields(report_of):
    source = LAYER_NORM.replace("gain:", '"""Takes x (..., D), with gain (D,); returns y (..., D)."""\n        gain:')
    run = lambda m: both_passes(m.LayerNorm(zeros(12), zeros(12)), zeros(5, 12))
    assert found(report_of(source, run)) == (15, 0, 0, 0, 0)
    assert len(report_of(source.replace("x (..., D)", "x (..., K)"), run).mismatched) == 1


def test_another_docstring_form(page):
    module = page(function('"""Takes <x> as [(B, T)]."""\nreturn x.sum()'))
    pattern = r"(?P<returns>!)?<(?P<name>\w+)> as \[(?P<shape>.*?)\]"
    run = lambda: module.f(zeros(2, 5))
    assert found(verify([module], run, letters=LETTERS, docstring=pattern)) == (1, 0, 0, 0, 0)


# ---------------------------------------------------------------- the trace leaves nothing behind

def test_trace_function_and_classes_are_put_back(page):
    import sys
    module = page(LAYER_NORM)
    before, init = sys.gettrace(), module.LayerNorm.__init__
    def run():
        raise KeyError("from the run")
    with pytest.raises(KeyError):
        verify([module], run)
    assert sys.gettrace() is before and module.LayerNorm.__init__ is init
    assert shape_tracer.__doc__
