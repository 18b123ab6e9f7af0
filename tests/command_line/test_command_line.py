"""The command line as a person meets it: what it prints, what it refuses, and with which exit status."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from numpy_transformer import Transformer
from numpy_transformer.__main__ import build_parser, main
from numpy_transformer.command_line import gradcheck
from numpy_transformer.translation.translator import Translator

ROOT = Path(__file__).parents[2]
SMALL = ["--width", "8", "--heads", "2", "--layers", "1", "--batch-size", "4", "--workers", "1"]
TSV = "\ufeffhello\t你好\tsomebody\r\n\nthank you\t谢谢\ngood night\t晚安\nnothing here\ngood morning\t早上好\nsee you\t再见\nhello\t您好"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a file of pairs and a model trained on it for a few steps."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "pairs.tsv").write_text(TSV, encoding="utf-8", newline="")
    arguments = ["train", "--data", str(folder / "pairs.tsv"), "--output", str(folder / "model.npz"), "--steps", "5", *SMALL]
    assert main(arguments) == 0
    return folder


def run(capsys, *arguments):
    """Exit status, standard output and standard error of a command."""
    capsys.readouterr()
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as exit:  # what argparse refuses
        status = exit.code
    return status, *capsys.readouterr()


def program(*arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "numpy_transformer", *map(str, arguments)], text=True, env=environment,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


# ── train ────────────────────────────────────────────────────────────────────────────────────────

def test_training_says_what_it_read_what_it_did_and_where_the_model_is(capsys, tmp_path):
    (tmp_path / "pairs.tsv").write_text(TSV, encoding="utf-8", newline="")
    status, out, err = run(capsys, "train", "--data", tmp_path / "pairs.tsv", "--output", tmp_path / "m.npz", "--steps", 3, *SMALL)
    assert status == 0
    assert "line 5" in out or "lines: 5" in out or re.search(r"\b5\b", out.split("\n")[0])  # the line without a TAB
    assert re.search(r"held-out sentences: +\d+ of 1 exactly right = \d+\.\d%, token error rate", out)
    assert f"The model is in {tmp_path / 'm.npz'}" in out and f"translate --model {tmp_path / 'm.npz'}" in out
    assert re.search(r"^step 3/3  loss \d+\.\d{4}  [\d,]+ tokens/s  0:00 left$", err, re.MULTILINE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.npz", "pairs.tsv"]


def test_the_same_training_twice_is_the_same_bit_for_bit(trained, capsys, tmp_path):
    logs = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        status, _, _ = run(capsys, "train", "--data", trained / "pairs.tsv", "--output", tmp_path / f"{name}.npz", "--steps", 6,
                           "--seed", seed, "--log", tmp_path / f"{name}.log", *SMALL)
        assert status == 0
        logs.append((tmp_path / f"{name}.log").read_text())
    assert logs[0] == logs[1] and logs[0] != logs[2]
    assert len(logs[0].splitlines()) == 6


def test_a_run_that_is_killed_and_resumed_ends_as_the_unbroken_one(trained, capsys, tmp_path):
    common = ["--data", trained / "pairs.tsv", "--steps", 500, *SMALL]
    status, out, _ = run(capsys, "train", *common, "--output", tmp_path / "whole.npz")
    whole = re.search(r"the last step's loss was (.*)", out)[1]
    process = program("train", *common, "--output", tmp_path / "broken.npz", "--save-every", 0.05)
    while not (tmp_path / "broken.npz").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    status, out, _ = run(capsys, "train", *common, "--output", tmp_path / "broken.npz", "--resume")
    assert status == 0 and re.search(r"resuming .* at step \d+ of 500", out)
    assert re.search(r"the last step's loss was (.*)", out)[1] == whole
    one, other = (Translator.load(tmp_path / name)[0].model.source_embedding.table for name in ("whole.npz", "broken.npz"))
    np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is no signal there")
def test_control_c_keeps_the_last_step_and_names_it(trained, tmp_path):
    process = program("train", "--data", trained / "pairs.tsv", "--output", tmp_path / "m.npz", "--steps", 100000,
                      "--save-every", 0.05, *SMALL)
    while not (tmp_path / "m.npz").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    step = int(re.search(r"numpy-transformer: stopped after step (\d+), which is kept in .*m\.npz; .* --resume", err)[1])
    assert "Traceback" not in err
    assert Translator.load(tmp_path / "m.npz")[1].step == step


def test_resuming_refuses_another_configuration_and_other_data(trained, capsys):
    common = ["train", "--data", trained / "pairs.tsv", "--output", trained / "model.npz", "--resume"]
    before = (trained / "model.npz").read_bytes()
    status, _, err = run(capsys, *common, "--width", 16)
    assert status == 2 and "another configuration: --width is 8, not 16" in err
    status, _, err = run(capsys, "train", "--output", trained / "model.npz", "--resume")
    assert status == 2 and "was trained on other sentences" in err
    assert (trained / "model.npz").read_bytes() == before


@pytest.mark.parametrize("content, message", [
    (b"", "is empty"), (b"no tab\nnone here\n", "line 1"), (b"a\t\xff\xfe\n", "line 1"), (b"one\tpair\n", "too few"),
])
def test_files_that_cannot_be_learned_from(content, message, capsys, tmp_path):
    (tmp_path / "bad.tsv").write_bytes(content)
    status, _, err = run(capsys, "train", "--data", tmp_path / "bad.tsv", "--output", tmp_path / "m.npz", *SMALL)
    assert status == 2 and message in err and "bad.tsv" in err
    assert err.count("\n") == 1 and err.startswith("numpy-transformer: error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.tsv"]


@pytest.mark.parametrize("arguments, message", [
    (["--data", "no/such.tsv"], "no/such.tsv"), (["--output", "no/such/folder/m.npz"], "No such file"),
    (["--output", "."], "is a directory"), (["--steps", "0"], "--steps: invalid"), (["--width", "-4"], "--width: invalid"),
    (["--width", "10", "--heads", "3"], "width 10 is not divisible by heads 3"), (["--dropout", "1.5"], "--dropout"),
    (["--seed", "-1"], "--seed: must not be negative"), (["--minutes", "0"], "--minutes"), (["--nonsense"], "--nonsense"),
    (["--resume", "--output", "no-such-model.npz"], "no-such-model.npz"),
])
def test_arguments_that_cannot_be(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, "train", *arguments)
    assert status == 2 and message in err.splitlines()[-1] and "Traceback" not in err
    assert not list(tmp_path.iterdir())


# ── translate ────────────────────────────────────────────────────────────────────────────────────

def test_translations_of_sentences_and_of_standard_input(trained, capsys, monkeypatch):
    status, out, _ = run(capsys, "translate", "--model", trained / "model.npz", "thank you", "good night")
    assert status == 0 and len(out.splitlines()) == 2
    monkeypatch.setattr("sys.stdin", ["thank you\n", "\n", "good night\n"])
    assert run(capsys, "translate", "--model", trained / "model.npz")[1] == out
    assert run(capsys, "translate", "--model", trained / "model.npz", "--workers", 2, "thank you", "good night")[1] == out
    status, out, _ = run(capsys, "translate", "--model", trained / "model.npz", "--beam", 2, "--attention", "thank you")
    assert status == 0 and "thank you <eos>" in out


def test_unknown_words_are_named(trained, capsys):
    status, out, err = run(capsys, "translate", "--model", trained / "model.npz", "thank zebra")
    assert status == 0 and err == "unknown word, read as <unk>: zebra\n"


@pytest.mark.parametrize("arguments, message", [
    ([""], "the sentence is empty"), (["  "], "the sentence is empty"),
    (["you " * 100], "the sentence has 100 tokens, the model reads at most 63"),
    (["--beam", "0", "thank you"], "--beam: invalid"), (["--workers", "0", "thank you"], "--workers: invalid"),
])
def test_sentences_that_cannot_be_translated(arguments, message, trained, capsys):
    status, out, err = run(capsys, "translate", "--model", trained / "model.npz", *arguments)
    assert status == 2 and message in err.splitlines()[-1] and not out


def test_without_a_model_it_says_what_to_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, "translate", "apple is delicious")
    assert status == 2 and "run 'python -m numpy_transformer train' first" in err and err.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 broken"])
def test_a_file_that_is_no_model(content, capsys, tmp_path):
    (tmp_path / "m.npz").write_bytes(content)
    status, _, err = run(capsys, "translate", "--model", tmp_path / "m.npz", "hello")
    assert status == 2 and "is not a checkpoint of this program" in err and err.count("\n") == 1
    assert "pickle" not in err  # NumPy's own advice would be to trust the file


# ── gradcheck ────────────────────────────────────────────────────────────────────────────────────

def test_gradcheck_of_every_component(capsys, monkeypatch):
    original = gradcheck.check_gradients
    whole = []

    def check(f, *arguments, **options):
        """Whole models take seconds each: one is enough here, the tests of the model check them all."""
        if isinstance(arguments[0], Transformer):
            whole.append(f)
            if len(whole) > 1:
                return {"skipped": 0.0}
        return original(f, *arguments, **options)

    monkeypatch.setattr(gradcheck, "check_gradients", check)
    status, out, _ = run(capsys, "gradcheck")
    assert status == 0 and len(whole) == 4
    rows = [line for line in out.splitlines() if " ok" in line]
    errors = [float(re.search(r"(\d\.\de-\d\d|0\.0e\+00) ", line)[1]) for line in rows]
    assert len(rows) > 55 and max(errors) <= 1e-7
    for name in ("softmax", "cross_attention", "layer_norm", "embedding", "cross_entropy", "transformer, pre-norm, tied",
                 "transformer, pre-norm, untied", "transformer, post-norm, tied", "transformer, post-norm, untied"):
        assert any(line.startswith(name + " ") for line in rows), name


def test_gradcheck_of_one_component(capsys):
    status, out, _ = run(capsys, "gradcheck", "softmax", "--seed", 5)
    assert status == 0 and out.splitlines()[-1].startswith("1 components, 0 wrong")
    status, _, err = run(capsys, "gradcheck", "no such thing")
    assert status == 2 and "no component is called no such thing; there are linear; dropout" in err


def test_a_wrong_gradient_is_reported_and_fails(capsys, monkeypatch):
    original = gradcheck.softmax

    def spoilt(x):
        y, backward = original(x)
        return y, lambda dy: 1.001 * backward(dy)

    monkeypatch.setattr(gradcheck, "softmax", spoilt)
    status, out, _ = run(capsys, "gradcheck", "softmax", "linear")
    assert status == 1 and re.search(r"^softmax +x\[\d+, \d+, \d+\]: backward says .* WRONG$", out, re.MULTILINE)
    assert "2 components, 1 wrong" in out


# ── help ─────────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("command", ["train", "translate", "gradcheck"])
def test_help_explains_every_argument(command, capsys):
    status, out, _ = run(capsys, command, "--help")
    assert status == 0
    actions = build_parser()._subparsers._group_actions[0].choices[command]._actions
    assert all(action.help for action in actions)


def test_a_command_is_needed(capsys):
    status, _, err = run(capsys)
    assert status == 2 and "COMMAND" in err


# ── a GPT ────────────────────────────────────────────────────────────────────────────────────────

@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt")
    (folder / "text.txt").write_text("to be or not to be, that is the question. " * 40, encoding="utf-8")
    assert main(["train", "--model", "gpt", "--data", str(folder / "text.txt"), "--output", str(folder / "gpt.npz"),
                 "--steps", "5", "--max-length", "16", *SMALL]) == 0
    return folder


def test_a_gpt_is_trained_and_goes_on_writing(written, capsys):
    status, out, _ = run(capsys, "generate", "--model", written / "gpt.npz", "to be", "--count", 20)
    assert status == 0 and out.startswith("to be") and len(out) == len("to be") + 20 + 1
    assert run(capsys, "generate", "--model", written / "gpt.npz", "to be", "--count", 20)[1] == out
    assert run(capsys, "generate", "--model", written / "gpt.npz", "to be", "--count", 20, "--seed", 1)[1] != out
    status, greedy, _ = run(capsys, "generate", "--model", written / "gpt.npz", "to be", "--count", 20, "--temperature", 0)
    assert greedy == run(capsys, "generate", "--model", written / "gpt.npz", "to be", "--count", 20, "--top-k", 1)[1]


def test_a_gpt_resumes(written, capsys, tmp_path):
    common = ["train", "--model", "gpt", "--data", written / "text.txt", "--max-length", 16, *SMALL]
    _, out, _ = run(capsys, *common, "--steps", 9, "--output", tmp_path / "whole.npz")
    whole = re.search(r"the last step's loss was (.*)", out)[1]
    process = program(*common, "--steps", 3000, "--output", tmp_path / "broken.npz", "--save-every", 0.02)
    while not (tmp_path / "broken.npz").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    status, out, _ = run(capsys, *common, "--output", tmp_path / "broken.npz", "--resume", "--minutes", 1e-9)
    assert status == 0 and "1 steps in" in out
    status, out, _ = run(capsys, *common, "--steps", 9, "--output", tmp_path / "whole.npz", "--resume")
    assert status == 0 and "all 9 steps had been taken already" in out and float(whole) > 0


@pytest.mark.parametrize("arguments, message", [
    (["train", "--model", "gpt"], "name one with --data"), (["generate", "x", "--model", "none.npz"], "train --model gpt"),
    (["train", "--model", "gpt", "--data", "short.txt"], "holds 5 characters"),
    (["train", "--model", "gpt", "--data", "binary.txt"], "is not UTF-8 text: byte 1 is 0xff"),
])
def test_a_gpt_refuses(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("short")
    (tmp_path / "binary.txt").write_bytes(b"a\xff")
    status, _, err = run(capsys, *arguments)
    assert status == 2 and message in err and err.count("\n") == 1


@pytest.mark.parametrize("prompt, message", [("", "the prompt is empty"), ("Z", "text[0] is 'Z'")])
def test_prompts_that_cannot_be_continued(prompt, message, written, capsys):
    status, out, err = run(capsys, "generate", "--model", written / "gpt.npz", prompt)
    assert status == 2 and message in err and not out


def test_a_gpt_is_no_translator(written, trained, capsys):
    assert "it holds a GPT, not a Transformer" in run(capsys, "translate", "--model", written / "gpt.npz", "x")[2]
    assert "it holds a Transformer, not a GPT" in run(capsys, "generate", "--model", trained / "model.npz", "x")[2]
