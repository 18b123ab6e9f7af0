"""Checkpoints: what is read is bit for bit what was written, a damaged file is refused, and a failure leaves the old one."""

import json
import os
import pickle
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numpy_transformer.foundations.parameters import from_vector, map_tree, named_parameters, parameter_count
from numpy_transformer.model.config import TransformerConfig
from numpy_transformer.model.transformer import Transformer
from numpy_transformer.training.adam import Adam, AdamState
from numpy_transformer.training.batches import make_batch
from numpy_transformer.training.checkpoint import load, save
from numpy_transformer.training.loop import loss_and_gradient
from strategies import assert_same, randomised, read_only, rngs

SMALL = TransformerConfig(7, 6, width=4, heads=2, hidden=5, encoder_layers=1, decoder_layers=1, max_length=9)
BATCH = make_batch([([3, 4, 5], [3, 4]), ([5], [4, 5, 3, 3])])

configs = st.builds(
    TransformerConfig, st.just(7), st.just(7), width=st.sampled_from([4, 6]), heads=st.sampled_from([1, 2]),
    hidden=st.sampled_from([3, 5]), encoder_layers=st.integers(0, 2), decoder_layers=st.integers(0, 1),
    max_length=st.sampled_from([8, 9]), dropout_rate=st.sampled_from([0.0, 0.1]),
    attention_dropout_rate=st.sampled_from([0, 0.2]), feed_forward_dropout_rate=st.sampled_from([0.0, 0.3]),
    norm_first=st.booleans(), final_norm=st.booleans(), learned_positions=st.booleans(), tie_embeddings=st.booleans(),
    share_vocabulary=st.booleans(), activation=st.sampled_from(["relu", "gelu", "gelu_tanh"]),
    epsilon=st.sampled_from([1e-5, 0.1]))
notes = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("aé≠\n\"\\0", max_size=4),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text("aé≠", max_size=3), parts, max_size=3), max_leaves=5)

few = settings(max_examples=settings().max_examples // 3)  # whole models take their time


def a_model(config=SMALL, dtype=np.float64, seed=0):
    return randomised(Transformer.init(np.random.default_rng(seed), config, dtype=dtype), np.random.default_rng(seed), dtype)


def an_optimiser(model, seed=1):
    rng, moments = np.random.default_rng(seed), Adam(0.1).init(model)
    first, second = (randomised(part, rng, part.dtype) for part in (moments.first, moments.second))
    return AdamState(17, first, second**2)


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """What a checkpoint of SMALL with an optimiser holds"""
    path, model = tmp_path_factory.mktemp("content") / "model.npz", a_model()
    save(path, model, SMALL, optimiser=an_optimiser(model), notes={"day": 3})
    return path.read_bytes()


@pytest.fixture
def path(tmp_path, content):
    """The path of that checkpoint, written anew for each test"""
    path = tmp_path / "model.npz"
    path.write_bytes(content)
    return path


def rewrite(path, entries, change_header=lambda header: header):
    """Write the file again with other entries, or without those whose new value is None."""
    with np.load(path) as file:
        arrays = dict(file)
    arrays["header"] = json.dumps(change_header(json.loads(str(arrays["header"]))))
    np.savez(path, **{name: array for name, array in (arrays | entries).items() if array is not None})


# ── There and back ───────────────────────────────────────────────────────────────────────────────

@given(configs, st.sampled_from([np.float32, np.float64]), st.booleans(), st.dictionaries(st.text("aé≠", max_size=3), notes, max_size=3),
       rngs)
def test_what_is_loaded_is_bit_for_bit_what_was_saved(tmp_path_factory, config, dtype, with_optimiser, notes, rng):
    path = tmp_path_factory.mktemp("checkpoint") / "a model"
    model = read_only(randomised(Transformer.init(rng, config), rng, dtype))
    optimiser = an_optimiser(model) if with_optimiser else None
    save(path, model, config, optimiser=optimiser, notes=notes)
    found = load(path)
    assert found.config == config
    assert found.notes == notes
    assert_same(found.model, model)
    source, target = BATCH.source, BATCH.target_input
    assert_same(found.model(source, target, pad=0)[0], model(source, target, pad=0)[0])
    dropped, expected = (m(source, target, pad=0, rng=np.random.default_rng(5))[0] for m in (found.model, model))
    assert_same(dropped, expected)
    if with_optimiser:
        assert found.optimiser.step == 17
        assert_same(found.optimiser, optimiser)
    else:
        assert found.optimiser is None
    assert os.listdir(path.parent) == ["a model"]


def test_the_path_may_be_a_string_and_keeps_its_name(tmp_path):
    save(str(tmp_path / "model"), a_model(), SMALL)
    assert os.listdir(tmp_path) == ["model"]
    assert_same(load(str(tmp_path / "model")).model, a_model())
    assert load(tmp_path / "model").notes == {}


def test_a_path_without_a_folder_is_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("model.npz", a_model(), SMALL)
    assert os.listdir() == ["model.npz"]
    assert_same(load("model.npz").model, a_model())


@pytest.mark.parametrize("value", [np.float64(5e-324), -0.0, np.finfo(np.float64).max, np.nextafter(1, 2)])
def test_every_finite_number_survives(tmp_path, value):
    model = map_tree(lambda array: np.full_like(array, value), a_model())
    save(tmp_path / "model", model, SMALL)
    for array in named_parameters(load(tmp_path / "model").model).values():
        assert array.tobytes() == np.full(array.shape, value).tobytes()


def test_a_state_before_the_first_step_is_a_state(tmp_path):
    save(tmp_path / "model", a_model(), SMALL, optimiser=Adam(0.1).init(a_model()))
    assert load(tmp_path / "model").optimiser.step == 0


def test_a_second_checkpoint_takes_the_place_of_the_first(path):
    save(path, a_model(seed=5), SMALL)
    assert_same(load(path).model, a_model(seed=5))
    assert load(path).optimiser is None
    assert os.listdir(path.parent) == [path.name]


def test_others_may_read_it_as_they_may_any_new_file(path):
    save(path, a_model(), SMALL)
    ordinary = path.with_name("ordinary")
    ordinary.write_text("")
    assert path.stat().st_mode == ordinary.stat().st_mode


@pytest.mark.parametrize("tie_embeddings, share_vocabulary", [(True, True), (True, False), (False, True), (False, False)])
def test_a_tie_is_not_broken_by_loading(tmp_path, tie_embeddings, share_vocabulary):
    config = replace(SMALL, target_vocabulary=7, tie_embeddings=tie_embeddings, share_vocabulary=share_vocabulary)
    model = a_model(config)
    save(tmp_path / "model", model, config)
    loaded = load(tmp_path / "model").model
    assert (loaded.output is None) == tie_embeddings and (loaded.target_embedding is None) == share_vocabulary

    def trained(model):
        _, gradient = loss_and_gradient(model, BATCH)
        return Adam(0.1).update(model, gradient, Adam(0.1).init(model))[0]

    assert_same(trained(loaded), trained(model))
    assert parameter_count(trained(loaded)) == parameter_count(model)
    table = (trained(loaded).target_embedding or trained(loaded).source_embedding).table
    assert (table != (model.target_embedding or model.source_embedding).table).any()


# ── Refused: entries ─────────────────────────────────────────────────────────────────────────────

WEIGHT = "encoder.layers.0.attention.query.weight"


@pytest.mark.parametrize("name, array, message", [
    *((f"{kind}.{WEIGHT}", array, f"{WEIGHT}'{message}") for kind in ("model", "first", "second") for array, message in [
        (None, " is missing"),
        (np.ones((5, 7)), r" has shape \(5, 7\): expected \(4, 4\)"),
        (np.ones((1, 4)), r" has shape \(1, 4\): expected \(4, 4\)"),
        (np.float64(1), r" has shape \(\): expected \(4, 4\)"),
        (np.full((4, 4), np.nan), " of dtype float64 holds what is no finite number"),
        (np.diag([1, 1, 1, np.inf]), " of dtype float64 holds what is no finite number"),
        (np.ones((4, 4), int), " of dtype int64"),
        (np.ones((4, 4), complex), " of dtype complex128"),
        (np.full((4, 4), "1"), " of dtype <U1")]),
    ("model.decoder.norm.shift", None, "decoder.norm.shift' is missing"),
    ("model.source_embedding.table", np.ones((4, 7)), r"source_embedding.table' has shape \(4, 7\): expected \(7, 4\)"),
    ("model.encoder.layers.1.attention.query.weight", np.ones((4, 4)), "encoder.layers.1.attention.query.weight' belongs to no place"),
    ("second.encoder.norm.epsilon", np.ones(1), "encoder.norm.epsilon' belongs to no place"),
    ("model.output.weight", np.ones((4, 6)), "output.weight' belongs to no place"),
    (WEIGHT, np.ones((4, 4)), f"'{WEIGHT}' belongs to no place"),
    ("unheard_of", np.ones(1), "'unheard_of' belongs to no place"),
    ("third." + WEIGHT, np.ones((4, 4)), f"'third.{WEIGHT}' belongs to no place"),
    ("header", None, "header"),
    ("header", np.ones(3), ""),
    ("header", "{", ""),
    ("header", "[]", ""),
    ("header", "3", ""),
])
def test_an_entry_that_is_missing_extra_or_misshapen_is_named(path, name, array, message):
    rewrite(path, {name: array})
    with pytest.raises(ValueError, match=f"model.npz is not a checkpoint of this program: .*{message}"):
        load(path)


def test_moments_without_a_step_belong_to_nothing(path):
    rewrite(path, {}, lambda header: header | {"step": None})
    with pytest.raises(ValueError, match="'first.source_embedding.table' belongs to no place"):
        load(path)


def test_a_step_without_moments_is_refused(path):
    save(path, a_model(), SMALL)
    rewrite(path, {}, lambda header: header | {"step": 17})
    with pytest.raises(ValueError, match="source_embedding.table' is missing"):
        load(path)


@pytest.mark.parametrize("change, message", [
    (lambda header: header | {"format": 1}, "format 1, expected 2"),
    (lambda header: header | {"format": "2"}, "format 2, expected 2"),
    (lambda header: header | {"format": 3, "config": {"of": "the future"}}, "format 3, expected 2"),
    (lambda header: header | {"config": header["config"] | {"experts": 8}}, "experts"),
    (lambda header: header | {"config": {k: v for k, v in header["config"].items() if k != "heads"}}, "heads"),
    (lambda header: header | {"config": header["config"] | {"heads": 3}}, "width 4 is not divisible by heads 3"),
    (lambda header: header | {"config": header["config"] | {"width": "4"}}, "width must be a whole number"),
    (lambda header: header | {"config": header["config"] | {"encoder_layers": 2}}, "encoder.layers.1.* is missing"),
    (lambda header: header | {"config": []}, ""),
    (lambda header: header | {"step": -1}, "step must be a whole number of at least 0, not -1"),
    (lambda header: header | {"step": 1.5}, "step must be a whole number of at least 0, not 1.5"),
    (lambda header: header | {"step": "17"}, "step must be a whole number of at least 0, not '17'"),
    (lambda header: {k: v for k, v in header.items() if k != "format"}, "format"),
    (lambda header: {k: v for k, v in header.items() if k != "config"}, "config"),
    (lambda header: {k: v for k, v in header.items() if k != "step"}, "step"),
    (lambda header: {k: v for k, v in header.items() if k != "notes"}, "notes"),
])
def test_a_header_that_does_not_fit_is_refused(path, change, message):
    rewrite(path, {}, change)
    with pytest.raises(ValueError, match=f"model.npz is not a checkpoint of this program: .*{message}"):
        load(path)


class Trap:
    """An object that, when it is unpickled, leaves a trace in the working directory"""

    def __reduce__(self):
        return open, ("trace", "w")


@pytest.mark.parametrize("name", ["model." + WEIGHT, "header", "first." + WEIGHT, "unheard_of"])
def test_a_file_of_objects_is_refused_and_nothing_in_it_is_run(path, monkeypatch, name):
    monkeypatch.chdir(path.parent)
    objects = np.empty((4, 4), object)
    objects[:] = Trap()
    rewrite(path, {name: objects})
    with pytest.raises(ValueError, match="model.npz is not a checkpoint of this program: .*allow_pickle=False"):
        load(path)
    assert not Path("trace").exists()
    with np.load(path, allow_pickle=True) as file:  # the trap is live: whoever unpickles it walks into it
        file[name].flat[0].close()
    assert Path("trace").exists()


# ── Refused: files ───────────────────────────────────────────────────────────────────────────────

def test_a_file_cut_short_is_refused_wherever_it_was_cut(path):
    content = path.read_bytes()
    for length in [*range(0, 200, 23), *range(200, len(content), 1997), *range(len(content) - 30, len(content), 3)]:
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="model.npz is not a checkpoint of this program"):
            load(path)


@few
@given(st.data())
def test_a_file_with_a_changed_byte_is_refused_or_says_the_same(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "changed.npz"
    model = a_model(replace(SMALL, encoder_layers=0, decoder_layers=0))
    save(path, model, replace(SMALL, encoder_layers=0, decoder_layers=0))
    content = bytearray(path.read_bytes())
    for _ in range(5):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        try:
            found = load(path)
        except ValueError as error:
            assert "changed.npz is not a checkpoint of this program" in str(error)
        else:
            assert_same(found.model, model)


@pytest.mark.parametrize("flag, at", [("compressed", 10), ("encrypted", 8)])
def test_an_archive_that_cannot_be_unpacked_is_refused(path, flag, at):
    content = bytearray(path.read_bytes())
    central = content.index(b"PK\x01\x02")  # the list of files at the end of an archive
    content[central + at] = {"compressed": 99, "encrypted": 1}[flag]
    path.write_bytes(content)
    with pytest.raises(ValueError, match="model.npz is not a checkpoint of this program"):
        load(path)


@pytest.mark.parametrize("content", [b"", b"no archive", pickle.dumps({"a": 1}), b"PK\x03\x04 and no more"], ids=repr)
def test_what_is_no_archive_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="model.npz is not a checkpoint of this program"):
        load(path)


def test_a_single_array_is_no_checkpoint(path):
    with open(path, "wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(ValueError, match="model.npz is not a checkpoint of this program"):
        load(path)


def test_a_file_that_cannot_be_read_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nowhere")
    with pytest.raises(OSError):
        load(tmp_path)


# ── A failure while writing ──────────────────────────────────────────────────────────────────────

def half_written(file, **arrays):
    file.write(b"half a checkpoint")
    raise OSError("the disk is full")


def interrupted(*arguments, **arrays):
    raise KeyboardInterrupt


@pytest.mark.parametrize("place, name, failure, error", [
    (np, "savez", half_written, OSError), (np, "savez", interrupted, KeyboardInterrupt),
    (os, "replace", interrupted, KeyboardInterrupt), (os, "fsync", interrupted, KeyboardInterrupt)])
@pytest.mark.parametrize("was_there", [True, False])
def test_a_failure_leaves_the_old_file_and_nothing_beside_it(path, monkeypatch, place, name, failure, error, was_there):
    old = path.read_bytes()
    if not was_there:
        path.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(place, name, failure)
        with pytest.raises(error):
            save(path, a_model(seed=5), SMALL)
    assert os.listdir(path.parent) == ([path.name] if was_there else [])
    assert not was_there or path.read_bytes() == old
    save(path, a_model(seed=5), SMALL)
    assert path.read_bytes() != old and os.listdir(path.parent) == [path.name]


def test_the_file_is_complete_and_on_the_disk_before_it_takes_its_name(path, monkeypatch):
    events = []
    really = {name: getattr(os, name) for name in ("fsync", "replace")}
    monkeypatch.setattr(os, "fsync", lambda handle: events.append("fsync") or really["fsync"](handle))

    def moved(temporary, target):
        events.append("replace")
        assert os.path.dirname(temporary) == str(path.parent)  # on the same disk, or the move could be half done
        assert_same(load(temporary).model, a_model(seed=5))
        really["replace"](temporary, target)

    monkeypatch.setattr(os, "replace", moved)
    save(path, a_model(seed=5), SMALL)
    assert events == ["fsync", "replace"]


def test_notes_that_json_cannot_hold_are_refused_before_anything_is_lost(path):
    old = path.read_bytes()
    with pytest.raises(TypeError, match="not JSON serializable"):
        save(path, a_model(seed=5), SMALL, notes={"array": np.ones(2)})
    assert path.read_bytes() == old and os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["model", "first", "second"])
def test_what_could_not_be_loaded_is_not_saved(path, content, kind, value):
    model = a_model()
    optimiser = an_optimiser(model)
    spoilt = model if kind == "model" else from_vector(model, getattr(optimiser, kind))
    spoilt.source_embedding.table[0, 0] = value
    with pytest.raises(ValueError, match=rf"^entry '{kind}\.source_embedding\.table' holds what is no finite number"):
        save(path, model, SMALL, optimiser=optimiser)
    assert path.read_bytes() == content and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("place", ["missing/model.npz", "model.npz/model.npz"])
def test_a_folder_that_cannot_be_written_to_is_an_error_of_the_system(path, place):
    with pytest.raises(OSError):
        save(path.parent / place, a_model(), SMALL)
    assert os.listdir(path.parent) == [path.name]


def test_the_header_is_readable_text(path):
    with np.load(path) as file:
        header = json.loads(str(file["header"]))
        names = [f"{kind}.{name}" for kind in ("model", "first", "second") for name in named_parameters(a_model())]
        assert sorted(file.files) == sorted(["header", *names])
    assert header == {"format": 2, "kind": "Transformer", "config": asdict(SMALL), "step": 17, "notes": {"day": 3}}


def test_a_model_of_another_kind_has_its_own_checkpoints(tmp_path):
    from numpy_transformer import GPT, GPTConfig

    config = GPTConfig(7, 8, 2, 12, 1, 5)
    gpt = GPT.init(np.random.default_rng(0), config)
    save(tmp_path / "gpt.npz", gpt, config)
    loaded = load(tmp_path / "gpt.npz", GPT, GPTConfig)
    np.testing.assert_array_equal(loaded.model.embedding.table, gpt.embedding.table)
    assert loaded.config == config
    with pytest.raises(ValueError, match="it holds a GPT, not a Transformer"):
        load(tmp_path / "gpt.npz")


def test_two_processes_that_save_at_once_write_into_files_of_their_own(path, monkeypatch):
    names = []
    monkeypatch.setattr(os, "replace", lambda temporary, target: names.append(temporary))
    for process in (1, 2):
        monkeypatch.setattr(os, "getpid", lambda: process)
        save(path, a_model(), SMALL)
    assert names[0] != names[1]
