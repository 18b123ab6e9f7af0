"""The benchmarks: their formulas, tables, files and figure. Nothing here asserts how fast anything is."""

import ast
import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command_line
from benchmarks import (attention, decode, duel, figure, foundations, layers, measure, model, operations, pairs, run, scaling,
                        side, step, svg, table, training)
from benchmarks.measure import Setting, Sizes
from benchmarks.rows import Change, Duel, Results, Row, compare, load, save

ROOT = Path(__file__).parents[2]
TINY = Sizes(B=2, T=3, D=8, H=2, F=5, V=7)
SETTING = Setting(quick=True, dtype="float32", threads=1)
LIMITS = {"product": 1e11, "memory": 1e10, "cache": 4e10}
MACHINE = {"numpy": "2.4.6", "blas": "scipy-openblas 0.3.31.188.0", "threads": 2, "cores": 2, "dtype": "float32", "quick": False,
           "cpu": "Some Maker's Processor with a Name that Goes On @ 2.90GHz", "python": "3.13.1", "system": "Linux x86_64",
           "date": "2026-01-02T03:04:05+00:00", "load": 1.5}


@pytest.fixture
def tiny(monkeypatch):
    """Sizes at which every part runs at once, and a clock that never waits for a long repeat."""
    small = model.Configuration(B=2, T=3, D=8, H=2, F=5, L=2, V=7)
    monkeypatch.setattr(measure, "QUICK", TINY)
    monkeypatch.setattr(Setting, "seconds", 0.0)
    monkeypatch.setattr(measure, "measure_limits", lambda setting: dict(LIMITS))
    monkeypatch.setitem(decode.WORDS, True, 4)
    for size in model.CONFIGURATIONS:
        monkeypatch.setitem(model.CONFIGURATIONS, size, small)
    for letter in scaling.SWEEPS:
        monkeypatch.setitem(scaling.SWEEPS, letter, (4, 8, 16))
        monkeypatch.setitem(scaling.BASE, letter, 4)


def row(*times, name="softmax", variant="forward", part="attention", **more):
    return Row(part, name, variant, "(2, 3)", times or (1e-3,), **more)


def work_of(found, name):
    (operation,) = (o for o in found if o.name == name)
    return {variant: (w.flops, w.bytes) for variant, w in operation.work.items()}


# ---------------------------------------------------------------- formulas

def test_flops_and_bytes_of_linear_by_hand():
    # 6 rows, 8 → 5: a product of 2·6·8·5 = 480 and 30 sums; backward two products and 30 sums.
    work = work_of(foundations.operations(SETTING, TINY), "Linear")
    assert work["forward"] == (480 + 30, 4 * (48 + 40 + 5 + 30))
    assert work["backward"] == (960 + 30, 4 * (30 + 48 + 40 + 48 + 40 + 5))


def test_flops_and_bytes_of_attention_by_hand():
    # (2, 2, 3, 4): 4 × 9 = 36 scores, 4 × 12 = 48 numbers in each of q, k, v, output.
    found = attention.operations(SETTING, TINY)
    assert work_of(found, "softmax") == {"forward": (180, 288), "backward": (144, 432)}
    assert work_of(found, "scaled_dot_product_attention") == {
        "forward": (36 * 16 + 36 * 6, 4 * 4 * 48), "backward": (36 * 32 + 36 * 5, 4 * 7 * 48)}
    assert work_of(found, "causal scaled_dot_product")["forward"][0] == 4 * 6 * (16 + 6)  # 6 of 9 scores a head
    # Four projections of 6 rows, 8 → 8 (768 and 48 sums each), the attention, backward two sums of 48 as well.
    assert work_of(found, "MultiHeadAttention") == {
        "forward": (4 * (768 + 48) + 36 * 22, 4 * (4 * 72 + 96)),
        "backward": (4 * (1536 + 48) + 36 * 37 + 2 * 48, 4 * (8 * 72 + 3 * 48))}


def test_flops_and_bytes_of_layers_by_hand():
    found = layers.operations(SETTING, TINY)
    assert work_of(found, "LayerNorm") == {"forward": (6 * 61, 4 * 112), "backward": (6 * 90, 4 * 168)}
    assert work_of(found, "relu") == {"forward": (30, 240), "backward": (60, 360)}
    assert work_of(found, "FeedForward")["forward"] == (480 + 30 + 30 + 480 + 48, 4 * (40 + 5 + 40 + 8 + 96))
    assert work_of(found, "Embedding") == {"forward": (0, 6 * 8 + 8 * 48), "backward": (48, 6 * 8 + 4 * (48 + 56))}


def test_flops_and_bytes_of_training_by_hand():
    found = training.operations(SETTING, TINY)
    P = 4 * (8 * 5 + 5 + 5 * 8 + 8)
    assert work_of(found, "cross_entropy")["forward"][0] == 5 * 42 + 4 * 6
    assert work_of(found, "Adam") == {"update": (12 * P, 28 * P)}
    assert work_of(found, "clip_gradients") == {"clip": (3 * P, 8 * P)}


def test_products_of_a_step_by_hand():
    c = model.Configuration(B=2, T=3, D=4, H=2, F=5, L=1, V=7)
    linear = 2 * 6 * (4 * 16 + 2 * 20 + 8 * 16 + 2 * 20 + 28)  # 6 words through every matrix
    attentions = 3 * 2 * 2 * (2 * 9 * 2 * 2)                   # 3 attentions, B, H; 9 scores, K = 2, for q·k and the mean
    assert step.step_flops(c) == 3 * (linear + attentions)
    assert step.step_flops(model.CONFIGURATIONS["base"]) == pytest.approx(151.498e9, rel=1e-5)
    for c in model.CONFIGURATIONS.values():  # everything else is little beside the products
        assert step.step_flops(c) < sum(model.transformer_flops(c)) < 1.03 * step.step_flops(c)


def test_model_is_the_sum_of_its_layers():
    c = model.CONFIGURATIONS["tiny"]
    one, two = (model.transformer_flops(model.Configuration(**{**vars(c), "L": L})) for L in (1, 2))
    N, sizes = c.B * c.T, (c.B, c.T, c.D, c.H, c.F)
    encoder, decoder = model.encoder_layer_flops(*sizes), model.decoder_layer_flops(*sizes)
    assert two[0] - one[0] == encoder[0] + decoder[0]
    assert two[1] - one[1] == encoder[1] + decoder[1] + N * c.D


def test_least_time_names_the_limit_that_binds():
    assert measure.least_time(2e11, 1e9, LIMITS) == (2.0, "compute")
    assert measure.least_time(1e9, 5e10, LIMITS) == (5.0, "memory")


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0, 3.0])
def test_exponent_of_an_exact_power_law(power):
    x = [3, 5, 8, 21, 100]
    assert scaling.exponent(x, [0.7 * value**power for value in x]) == pytest.approx(power, rel=1e-12)


def test_exponent_is_least_squares_in_the_logarithms():
    rng = np.random.default_rng(5)
    x, y = rng.uniform(1, 9, 6), rng.uniform(1, 9, 6)
    assert scaling.exponent(x, y) == pytest.approx(np.polyfit(np.log(x), np.log(y), 1)[0])
    assert math.isnan(scaling.exponent([4], [1.0]))


# ---------------------------------------------------------------- measuring

def test_time_calls_warms_up_and_repeats(tiny):
    calls = []
    (times,) = measure.time_calls([lambda: calls.append(1)], Setting())
    assert len(times) == 7 == len(calls) - 2 and all(t > 0 for t in times)


def test_peak_memory_sees_what_numpy_allocates_and_frees():
    assert 8e6 < measure.peak_memory(lambda: np.ones(10**6).sum()) < 8.1e6


def test_machine_says_what_a_reader_has_to_know():
    found = measure.machine(Setting(threads=3))
    assert found["numpy"] == np.__version__ and found["threads"] == 3 and found["dtype"] == "float32"
    assert all(found[key] for key in ("blas", "cpu", "cores", "python", "date"))


def test_wrong_values_are_never_timed():
    good = np.ones(3, np.float32)
    operations.check_values("f", {"y": good, "gradient": good}, "float32")
    for label, bad in (("not finite", good * np.nan), ("float64", np.ones(3)), ("zero", good * 0)):
        with pytest.raises(operations.CheckError, match=label):
            operations.check_values("f", {"gradient": bad}, "float32")


@pytest.mark.parametrize("part", [foundations, attention, layers, model, training])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_operations_return_their_own_dtype(tiny, part, dtype):
    for operation in part.operations(Setting(quick=True, dtype=dtype)):
        operations.check_values(operation.name, operation.values(), dtype)
        assert list(operation.passes()) == list(operation.work)


def test_equal_seeds_give_both_sides_the_same_numbers(tiny):
    for one, other in zip(attention.operations(SETTING), attention.operations(SETTING)):
        for a, b in zip(one.values().values(), other.values().values()):
            np.testing.assert_array_equal(a, b)


def test_a_step_learns(tiny):
    (one,) = [s for s in step.operations(SETTING) if s.name == "tiny"]
    call = one.passes()["dropout 0"]
    losses = [call() for _ in range(20)]
    assert losses[-1] < losses[0] and losses[0] == pytest.approx(float(one.values()["y"]))


def test_decoding_without_cache_writes_the_same_words(tiny):
    for one in decode.operations(SETTING):
        assert one.values()["y"].shape == (one.B, one.words)


def test_workers_decode_the_same_words(tiny, monkeypatch):
    monkeypatch.setitem(model.CONFIGURATIONS, "small", model.Configuration(B=2, T=3, D=8, H=2, F=5, L=1, V=40))
    alone, shared, least = decode.Decode(1, 4, "float32", 2), decode.Decode(3, 4, "float32", 2), decode.Decode(2, 4, "float32", 2)
    assert list(alone.variants) == ["cached", "uncached"]
    assert list(shared.variants) == list(least.variants) == ["cached", "cached, 2 workers", "uncached"]
    assert shared.values()["y"].shape == (3, 4)  # after a comparison of all three ways
    ways = shared.passes()
    ids = ways["cached"]()
    assert len({tuple(row) for row in ids.tolist()}) == 3  # each sentence has its own
    np.testing.assert_array_equal(ways["cached, 2 workers"](), ids)


def test_both_ways_of_every_pair_give_the_same_numbers(tiny):
    names = []
    for pair in pairs.pairs(SETTING):
        pairs.check_equal(pair)
        names.append(pair.name)
        assert len(pair.ways) == 2
    assert len(names) >= 7


@pytest.mark.parametrize("wrong", [np.array([1.0, 2.01]), np.array([1.0, np.nan]), np.ones((2, 1))])
def test_a_pair_that_differs_is_found_out(wrong):
    with pytest.raises(operations.CheckError, match="differ"):
        pairs.check_equal(pairs.Pair("p", "", {"a": lambda: np.array([1.0, 2.0]), "b": lambda: wrong}, ""))


def test_a_conclusion_needs_median_and_minimum():
    plain = row(4.0, 4.0, 5.0, variant="plain", memory=100)
    assert pairs.conclusion(plain, row(2.0, 2.0, 2.5, variant="book", memory=25), "so it is") == (
        "“book” is 2.0 times as fast, “book” takes 25% of the memory: so it is")
    assert pairs.conclusion(plain, row(8.0, 8.0, 8.0, variant="book"), "so it is") == "“plain” is 2.0 times as fast: so it is"
    assert pairs.conclusion(plain, row(2.0, 4.0, 5.0, variant="book"), "why").startswith("no clear difference")


# ---------------------------------------------------------------- files and comparisons

def test_json_round_trip(tmp_path):
    results = Results(MACHINE, LIMITS, [row(1.5e-3, 1e-3, flops=2.0, bytes=3.0), row(1.0, memory=5, size=7, part="scaling")],
                      [Duel("step", "tiny", "dropout 0", "B 2", "sdpa", (1.0, 2.0), (3.0, 4.0), None)])
    save(tmp_path / "run.json", results)
    assert load(tmp_path / "run.json") == results
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 0}', '{"format": 1, "rows": [{"part": "x"}]}', "\x00"])
def test_a_file_of_anything_else_is_refused(tmp_path, content):
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="run.json holds no results"):
        load(path)


def test_compare_flags_planted_changes_and_not_noise():
    rng = np.random.default_rng(0)

    def repeats(seconds):
        return tuple(seconds * (1 + rng.exponential(0.03, 7)))

    old = [row(*repeats(1e-3), name=f"f{i}") for i in range(200)]
    noise = compare(old, [row(*repeats(1e-3), name=f"f{i}") for i in range(200)])
    assert len(noise) == 200 and not any(change.verdict for change in noise)
    slower = compare(old, [row(*repeats(1.5e-3), name=f"f{i}") for i in range(200)])
    assert {change.verdict for change in slower} == {"slower"}
    faster = compare(old, [row(*repeats(0.6e-3), name=f"f{i}") for i in range(200)])
    assert {change.verdict for change in faster} == {"faster"}


def test_compare_wants_median_and_minimum_to_agree():
    assert Change(row(1.0, 1.0, 1.0), row(1.0, 2.0, 2.0)).verdict == ""  # one repeat was as fast as before
    assert Change(row(1.0, 1.0, 1.0), row(2.0, 2.0, 2.0)).verdict == "slower"
    assert compare([row()], [row(name="another")]) == []


def test_ratio_is_the_median_of_the_rounds():
    one = Duel("step", "tiny", "step", "", "sdpa", (1.0, 8.0, 3.0), (2.0, 2.0, 2.0), 0.0)
    assert one.ratio == 1.5 and one.best_ratio == 0.5


def test_difference_finds_missing_misshapen_and_wrong_arrays():
    a = {"y": np.array([3e6, 4e6]), "gradient 0": np.array([3.0, 4.0]), "gradient 1": np.array([1e-20, 0.0])}
    names = list(a)
    assert duel.difference(a, dict(a), names)[0] == 0
    assert duel.difference(a, {**a, "gradient 1": np.array([0.0, 1e-18])}, names)[0] < 1e-12  # 0 but for rounding
    assert duel.difference(a, {**a, "gradient 1": np.array([0.0, 1e-3])}, names)[0] > 1e-2
    error, name = duel.difference(a, {**a, "gradient 0": np.array([3.0, 4.1])}, names)
    assert name == "gradient 0" and error == pytest.approx(0.1 / 5)  # however large y is
    assert duel.difference(a, {"y": a["y"], "gradient 0": a["gradient 0"]}, names) == (math.inf, "gradient 1")
    assert duel.difference(a, {**a, "y": np.ones(3)}, names) == (math.inf, "y")
    assert duel.compared({"y": np.ones(1, np.float32), "gradient": np.ones(1)}, "float32") == ["y"]
    assert duel.compared({"y": np.ones(1, int)}, "float32") == []


class Scripted:
    """A side whose times are known."""

    def __init__(self, times):
        self.times = times

    def ask(self, method, part, name, variant=None, label=None):
        return self.times[label] if method == "time" else "(2, 3)"


def test_the_fastest_way_of_the_twin_counts(monkeypatch):
    monkeypatch.setattr(duel, "GAP", 0)
    ours, theirs = Scripted({None: 3.0}), Scripted({"sdpa": 2.0, "explicit": 1.0})
    one = duel.fight(ours, theirs, "model", "layer", "forward", ["sdpa", "explicit"], 1e-9, SETTING)
    assert (one.way, one.ratio, one.difference) == ("explicit", 3.0, 1e-9)


def test_a_side_answers_requests(tiny, tmp_path, capsys):
    file = str(tmp_path / "values.npz")
    requests = [["shape", "attention", "softmax"], ["values", "attention", "softmax", "float64", None, file],
                ["values", "foundations", "dropout", "float64", None, file], ["time", "attention", "softmax", "forward", None]]
    side.serve("numpy", SETTING, map(json.dumps, requests))
    shape, saved, drawn, seconds = map(json.loads, capsys.readouterr().out.splitlines())
    assert (shape, saved, drawn) == ("(2, 2, 3, 3)", True, False) and seconds > 0
    with np.load(file) as values:
        assert values["y"].dtype == values["gradient"].dtype == np.float64


# ---------------------------------------------------------------- tables and the figure

def everything_large():
    """Every table at the widest that its numbers may get, with PyTorch's columns."""
    rows = [row(99.123456, name=operation.name, variant=variant, part=part, flops=1e13, bytes=1e12, size=2048)
            for part, found in (("layers", layers.operations(SETTING, TINY)), ("model", model.operations(SETTING, TINY)))
            for operation in found for variant in operation.work]
    duels = {(r.name, r.variant): Duel(r.part, r.name, r.variant, r.shape, "explicit", (99.1,), (9.9,), 1e-9) for r in rows}
    steps = [Row("step", "medium", "dropout 0.1, 16 workers", str(model.CONFIGURATIONS["base"]), (19.1,), flops=1e12)]
    step_duels = {("medium", steps[0].variant): duels[rows[0].name, "forward"]}
    ways = [row(99.1, part="pairs", name="a pair", variant=way, memory=10**10) for way in ("sorted, np.add.reduceat", "matmul")]
    sweep = [Row("scaling", name, "T", "B 2, T 1, D 128, 4 heads", (9.1,), memory=10**10, size=size)
             for name in ("attention", "encoder layer") for size in (64, 128, 256, 512, 1024)]
    changes = [Change(row(99.1, name="scaled_dot_product_attention", variant="backward"),
                      row(12.1, name="scaled_dot_product_attention", variant="backward"))]
    return [table.head({**MACHINE, "torch": "2.13.0+cpu"}, LIMITS), table.operation_table("layers", rows, LIMITS, duels),
            table.operation_table("layers", rows, LIMITS), table.step_table("step", steps, LIMITS, step_duels),
            table.decode_table("decode", rows, LIMITS, duels), table.pair_table("pairs", ways, ["a lesson " * 20]),
            table.scaling_table("scaling", sweep, scaling.exponents(sweep)),
            table.comparison_table("compared with run.json", changes, ["note " * 40]), table.footnotes(table.NOTES)]


@pytest.mark.parametrize("text", everything_large())
def test_tables_fit_a_hundred_columns(text):
    assert max(map(len, text.splitlines())) <= 100


def test_numbers_are_aligned_and_units_stand_in_the_header():
    rows = [row(1.5, 1.0, flops=2e9, bytes=1e6), row(0.001, variant="backward", flops=2e6, bytes=1e6)]
    lines = table.operation_table("attention", rows, LIMITS).splitlines()
    assert lines[2].split("  ")[0] == "operation" and "median ms" in lines[2] and "GFLOP/s" in lines[2] and "GB/s" in lines[2]
    forward, backward = lines[4:6]
    assert forward.split()[:3] == ["forward", "1250.000", "1000.000"]
    assert [i for i, c in enumerate(forward) if c == "."] == [i for i, c in enumerate(backward) if c == "."]
    assert lines[3] == "softmax  (2, 3)"


def test_head_names_versions_threads_processor_and_dtype():
    text = table.head(MACHINE, LIMITS)
    for part in ("NumPy 2.4.6", "scipy-openblas", "2 BLAS threads", "Some Maker's", "float32", "100.0 GFLOP/s", "10.0 GB/s", "noise"):
        assert part in text
    assert "noise" not in table.head({**MACHINE, "load": 0.1}, LIMITS)


def test_figure_is_well_formed_and_readable_in_both_schemes(tiny):
    rows = [Row(part.__name__.split(".")[-1], o.name, variant, o.shape, (1e-3 + i / 1e4,), w.flops, w.bytes)
            for part in (foundations, attention, layers, model, training) for i, o in enumerate(part.operations(SETTING))
            for variant, w in o.work.items()]
    rows += [Row("scaling", name, letter, "", (x / 1e3,), memory=10**6 * x, size=x)
             for name in ("attention", "encoder layer") for letter in "TDB" for x in (64, 128, 256)]
    text = figure.draw(rows, LIMITS, scaling.exponents([r for r in rows if r.part == "scaling"]), ["a <caption> & more"])
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    style = root.find(f"{space}style").text
    assert "prefers-color-scheme: dark" in style and svg.LIGHT["ink"] in style and svg.DARK["ink"] in style
    assert "url(" not in style and "@import" not in style and "@font-face" not in style
    assert len(root.findall(f"{space}circle")) == sum(bool(r.flops and r.bytes) for r in rows) + 6 * 6
    boxes = []
    for label in root.findall(f"{space}text"):
        words, x, y = "".join(label.itertext()), float(label.get("x")), float(label.get("y"))
        width = 5.5 * len(words)
        left = x - {"start": 0, "middle": width / 2, "end": width}[label.get("text-anchor")]
        assert 0 <= left and left + width <= figure.WIDTH, words
        boxes.append((left, y - 8, left + width, y + 2, words))
    clashes = [(a[4], b[4]) for i, a in enumerate(boxes) for b in boxes[:i] if svg.overlap(a[:4], b[:4])]
    assert not clashes


def test_figure_of_nothing_but_the_limits():
    root = ElementTree.fromstring(figure.draw([], LIMITS, {}, []))
    assert "products 100 GFLOP/s" in "".join(root.itertext())


@pytest.mark.parametrize("low, high", [(1.0, 1.0), (0.003, 900.0), (20.0, 30.0)])
def test_axes_hold_their_values_and_have_ticks(low, high):
    (start, end), ticks = svg.scale([low, high])
    assert start < low <= high < end and len(ticks) >= 1 and all(start <= tick <= end for tick in ticks)


# ---------------------------------------------------------------- the command line

def test_whole_program(tiny, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(Setting, "repeats", 1)
    files = {name: str(tmp_path / name) for name in ("run.json", "figure.svg")}
    asked = ["--quick", "--threads", "1", "--json", files["run.json"], "--svg", files["figure.svg"]]
    assert run.run(command_line.parse(asked)) == 0
    out, err = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= 100
    assert all(f"\n{part}" in out for part in command_line.PARTS) and "attention: softmax, forward" in err
    assert {r.part for r in load(files["run.json"]).rows} == set(command_line.PARTS)
    ElementTree.parse(files["figure.svg"])
    assert run.run(command_line.parse(["foundations", "--quick", "--compare", files["run.json"]])) == 0
    assert "4 rows compared" in capsys.readouterr().out


def test_missing_pytorch_is_one_line_that_tells_the_remedy(tiny, monkeypatch, capsys):
    monkeypatch.setattr(duel, "installed", lambda: False)
    assert run.run(command_line.parse(["foundations", "--quick", "--torch"])) == 0
    out, err = capsys.readouterr()
    assert "pip install torch" in err and "PyTorch" not in out


def test_a_wrong_value_ends_the_run_with_one_line(tiny, monkeypatch, capsys):
    def fail(*_):
        raise operations.CheckError("softmax: y is not finite")

    monkeypatch.setattr(run, "measure_operations", fail)
    assert run.run(command_line.parse(["attention", "--quick"])) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "python -m benchmarks: softmax: y is not finite"


@pytest.mark.parametrize("arguments, said", [
    (["nonsense"], "unknown part 'nonsense'; there are foundations"), (["--threads", "0"], "at least 1"), (["--threads", "two"], "two"),
    (["--dtype", "float16"], "float16"), (["--compare", "no-such-file.json"], "cannot read no-such-file.json"),
    (["--compare", __file__], "holds no results"), (["--json", "no/such/folder/run.json"], "cannot write"),
    (["--svg", "."], "cannot write"), (["--colour"], "--colour")])
def test_bad_usage_is_one_line_and_status_two(arguments, said, capsys):
    with pytest.raises(SystemExit) as exit_:
        command_line.parse(arguments)
    out, err = capsys.readouterr()
    assert exit_.value.code == 2 and said in err and err.count("\n") == 1 and not out


def test_parts_run_in_the_books_order():
    assert command_line.parse(["step", "attention"]).parts == ["attention", "step"]
    assert command_line.parse([]).parts == list(command_line.PARTS)


def test_threads_are_pinned_before_numpy_is_imported():
    code = ("import os, sys; import benchmarks.__main__ as m; assert 'numpy' not in sys.modules; m.run = None;"
            "sys.modules['benchmarks.run'] = type(sys)('run'); sys.modules['benchmarks.run'].run = lambda options: 7;"
            "assert m.main(['step', '--threads', '3']) == 7; assert os.environ['OPENBLAS_NUM_THREADS'] == '3'")
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_pytorch_is_imported_in_one_file():
    importing = set()
    for path in (ROOT / "benchmarks").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "torch" for name in names):
                importing.add(path.name)
    assert importing == {"torch_twin.py"}
