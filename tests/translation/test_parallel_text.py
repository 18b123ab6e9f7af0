"""Reading tables as people make them: odd line ends, odd lines, odd files; and splits that share no source."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from numpy_transformer.translation.corpus import Pair
from numpy_transformer.translation.parallel_text import read_parallel_text, split_by_source
from numpy_transformer.translation.vocabulary import tokenise

TWO = [("Run.", "跑。"), ("Hi.", "你好。")]
cells = st.text("ab猫。 \u3000\u200b\u2028\x0b", max_size=4)


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "pairs.tsv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path
    return write


@pytest.mark.parametrize("content", [
    "Run.\t跑。\nHi.\t你好。\n",
    "Run.\t跑。\nHi.\t你好。",                                      # no last line end
    "Run.\t跑。\r\nHi.\t你好。\r\n",                                # Windows
    "Run.\t跑。\rHi.\t你好。\r",                                    # a Macintosh of long ago
    "\ufeffRun.\t跑。\nHi.\t你好。\n",                              # byte order mark
    "Run.\t跑。\tCC-BY\t#1\nHi.\t你好。\t\n",                       # more columns
    " Run. \t\u3000跑。\u200b\nHi\u2060.\t\u00a0你好。\n",          # space of all widths
], ids=["unix", "unfinished", "windows", "macintosh", "mark", "columns", "space"])
def test_the_same_two_pairs(write, content):
    pairs, report = read_parallel_text(write(content))
    assert pairs == TWO and all(isinstance(pair, Pair) for pair in pairs)
    assert (report.lines, report.pairs, report.several_targets) == (2, 2, 0)
    assert not report.blank + report.without_tab + report.empty_side + report.repeated
    assert str(report) == f"{report.path}: 2 pairs from 2 lines"


def test_what_is_dropped_is_reported(write):
    path = write("\ufeff\nRun.\t跑。\nno tab here\nHi.\t\u3000\n\t你好。\n \nRun.\t跑。\u200b\nRun.\t奔跑。\n\t\nRun.\t跑。")
    pairs, report = read_parallel_text(str(path))
    assert pairs == [("Run.", "跑。"), ("Run.", "奔跑。")]
    assert (report.path, report.lines, report.pairs, report.several_targets) == (str(path), 10, 2, 1)
    assert report.blank == (1, 6) and report.without_tab == (3,)
    assert report.empty_side == (4, 5, 9) and report.repeated == (7, 10)
    assert str(report) == (
        f"{path}: 2 pairs from 10 lines, 1 source with several targets\n"
        "dropped: 2 blank (line 1, 6); 1 without a tab (line 3); "
        "3 with an empty side (line 4, 5, 9); 2 repeated (line 7, 10)")


def test_a_long_report_shows_the_first_lines(write):
    _, report = read_parallel_text(write("a\tb\n" * 9))
    assert str(report).endswith("1 pair from 9 lines\ndropped: 8 repeated (line 2, 3, 4, …)")


def test_spaced_letters_are_tokens_as_they_are(write):
    (pair,), _ = read_parallel_text(write("' c a u s e\tK AH0 Z\n"))
    assert tokenise(pair.source) == ["'", "c", "a", "u", "s", "e"]
    assert tokenise(pair.target) == ["K", "AH0", "Z"]


def test_quotes_are_text_and_only_line_ends_end_a_line(write):
    pairs, _ = read_parallel_text(write('"He said\t“你好”\none\u2028two\x0bthree\x0c\tx\x1cy\u0085z\n'))
    assert pairs == [('"He said', "“你好”"), ("one two three", "x y z")]


@pytest.mark.parametrize("content, words", [
    (b"", "is empty"), (b"\xef\xbb\xbf", "is empty"), (b"\n \r\n\n", "is empty"),
    (b"\nRun.,Hi.\nno tab\n", "not tab-separated: line 2 has no tab, nor has any other"),
    (b"\n\t\nRun.\t\n", "no line with text on both sides of the tab: see line 2"),
    ("Run.\t跑。\nHi.\t好\n".encode("gbk"), "not UTF-8 text: byte 6 of line 1 is 0x"),
    (b"Run.\tx\nHi\xff.\ty\n", "not UTF-8 text: byte 3 of line 2 is 0xff"),
    ("Run.\tx\n".encode("utf-16"), "not UTF-8 text: byte 1 of line 1 is 0xff"),
    ("Run.\tx\n".encode("utf-16-le"), "not UTF-8 text: byte 2 of line 1 is 0x00"),
    (b"a\tb\n\xe8\xb7\tc\n", "byte 1 of line 2 is 0xe8"),
])
def test_a_file_that_is_no_table(write, content, words):
    path = write(content)
    with pytest.raises(ValueError) as caught:
        read_parallel_text(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and words in message and "\n" not in message
    assert type(caught.value) is ValueError


def test_a_file_that_cannot_be_opened(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing.tsv"):
        read_parallel_text(tmp_path / "missing.tsv")
    with pytest.raises(OSError):
        read_parallel_text(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(rows=st.lists(st.lists(cells, min_size=1, max_size=3), max_size=8), end=st.sampled_from(["\n", "\r\n"]))
def test_every_line_is_kept_or_reported_once(write, rows, end):
    path = write("".join("\t".join(row) + end for row in rows) + "good\tgut")
    pairs, report = read_parallel_text(path)
    dropped = report.blank + report.without_tab + report.empty_side + report.repeated
    assert report.lines == len(rows) + 1 == len(pairs) + len(dropped) and len(set(dropped)) == len(dropped)
    assert len(set(pairs)) == len(pairs) == report.pairs
    for side in (text for pair in pairs for text in pair):
        assert side and side == " ".join(side.split()) and "\u200b" not in side
    several = Counter(source for source, _ in pairs)
    assert report.several_targets == sum(count > 1 for count in several.values())
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    assert read_parallel_text(path)[0] == pairs


# ── Splitting ────────────────────────────────────────────────────────────────────────────────────

some_pairs = st.lists(st.builds(Pair, st.sampled_from(["Run.", "run .", "RUN．", "Hi", "hi", "a b", "a  B"]),
                                st.sampled_from("猫狗马")), unique=True)


@given(some_pairs, st.integers(0, 3) | st.floats(0, 1), st.integers(0, 5))
def test_no_source_on_both_sides(pairs, test, seed):
    distinct = {tuple(tokenise(pair.source, lower=True)) for pair in pairs}
    test = min(test, len(distinct)) if isinstance(test, int) else test
    training, tested = split_by_source(pairs, test, seed)
    sides = [{tuple(tokenise(pair.source, lower=True)) for pair in side} for side in (training, tested)]
    assert not sides[0] & sides[1]
    assert len(sides[1]) == (test if isinstance(test, int) else round(test * len(distinct)))
    assert training == [pair for pair in pairs if pair not in tested]
    assert tested == [pair for pair in pairs if pair not in training]
    assert split_by_source(pairs, test, seed) == (training, tested)


def test_the_seed_decides_the_draw():
    pairs = [Pair(str(n), "x") for n in range(100)]
    draws = {tuple(split_by_source(pairs, 0.1, seed)[1]) for seed in range(10)}
    assert len(draws) == 10 and {len(draw) for draw in draws} == {10}


@pytest.mark.parametrize("test", [-1, 3, 1.5, -0.1, float("nan"), "1"])
def test_test_size_is_checked(test):
    with pytest.raises(ValueError, match="^test must be"):
        split_by_source(list(map(Pair._make, TWO)), test)
