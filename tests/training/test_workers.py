"""Workers: the loss and gradient of one process, from several."""

import os
import pickle
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from numpy_transformer import Transformer, TransformerConfig, from_vector, map_tree, named_parameters, parameter_count, to_vector
from numpy_transformer.training.adam import Adam
from numpy_transformer.training.batches import Batch, epoch, make_batch
from numpy_transformer.training.clipping import clip_gradients, gradient_norm
from numpy_transformer.training.loop import Progress, TrainingConfig, training_steps
from numpy_transformer.training import workers as page
from numpy_transformer.training.workers import Workers, _Worker, loss_and_gradient
from strategies import assert_close, assert_same, randomised

EXAMPLES = [([4, 5, 6, 7], [8, 9, 4]), ([5], [6, 7, 8, 9, 4]), ([6, 6], [7]), ([9, 8, 7], [6, 5]), ([4, 9], [5, 5, 5])]


def make_model(dropout_rate=0.0, dtype=np.float64):
    config = TransformerConfig(10, 10, 8, 2, 12, 1, 2, 16, dropout_rate)
    return randomised(Transformer.init(np.random.default_rng(0), config), np.random.default_rng(1), dtype)


def run(workers, steps=4, dropout_rate=0.2):
    model = make_model(dropout_rate, np.float32)
    start = Progress(model, Adam(0.0).init(model))
    config = TrainingConfig(steps=steps, batch_size=3, warmup_steps=5)
    losses = []
    for progress in training_steps(start, EXAMPLES, config, workers):
        losses.append(progress.loss)
    return losses, {name: array.copy() for name, array in named_parameters(progress.model).items()}


@pytest.fixture(scope="module")
def team():
    with Workers(make_model(), 2) as workers:
        yield workers


def test_loss_and_gradient_are_those_of_one(team):
    for examples in (EXAMPLES, EXAMPLES[:2], [([5], [])]):  # the last leaves the second worker without a sentence, and is one word
        batch = make_batch(examples)
        loss, gradient = team.differentiate(batch, label_smoothing=0.1), team.gradient()
        expected_loss, expected = loss_and_gradient(team.model, batch, label_smoothing=0.1)
        assert loss == pytest.approx(expected_loss, rel=1e-12)
        expected = named_parameters(expected)
        for name, array in named_parameters(gradient).items():
            assert_close(array, expected[name], 1e-12)


def test_a_count_may_be_numpys():
    with Workers(make_model(), np.int64(2)) as team:
        assert len(team._processes) == 1


def test_there_are_as_many_as_asked_for(team):
    assert len(team._processes) == len(team._connections) == 1  # this process is the first of the two


def test_workers_follow_the_model_when_it_is_stepped(team):
    batch = make_batch(EXAMPLES)
    before = team.differentiate(batch)
    bias = team.model.encoder.layers[0].feed_forward.expand.bias
    bias += 1.0
    after = team.differentiate(batch)
    assert after == pytest.approx(loss_and_gradient(team.model, batch)[0], rel=1e-12)
    bias -= 1.0
    assert after != pytest.approx(before, rel=1e-6)


def test_the_model_given_stays_as_it_was():
    model = make_model()
    before = to_vector(model)
    with Workers(model, 1) as workers:
        np.testing.assert_array_equal(to_vector(workers.model), before)
        workers.model.source_embedding.table[:] = 0
    np.testing.assert_array_equal(to_vector(model), before)


@pytest.mark.parametrize("count", [1, 2, 3, 200])
def test_every_parameter_is_in_one_share(count):
    """200 workers are more than there are arrays: some have nothing to step."""
    model, found = make_model(), []
    memory = bytearray((3 + count) * to_vector(model).nbytes)
    for number in range(count):
        worker = _Worker(model, number, count, memory, "<f8")
        found += worker.names
        size = parameter_count(worker.parameters)
        assert len(worker.names) == len(worker.parameters) and len(worker.summands) == count
        assert worker.flat.size == worker.first.size == worker.second.size == size
        assert all(part.size == size for part in worker.summands)
        assert abs(size - parameter_count(model) / count) <= max(array.size for array in named_parameters(model).values())
    assert found == list(named_parameters(model))


@pytest.mark.parametrize("count", [3, 6])
def test_more_than_two_add_up_too(count):
    """Six are more than there are sentences."""
    model, batch = make_model(), make_batch(EXAMPLES)
    with Workers(model, count) as team:
        team.differentiate(batch)
        assert_same(team.gradient(), loss_and_gradient(model, batch)[1], rtol=1e-9, atol=1e-12)


def test_where_no_word_counts_there_is_nothing_to_learn(team):
    batch = make_batch(EXAMPLES)
    assert team.differentiate(replace(batch, target_output=np.zeros_like(batch.target_output))) == 0
    assert not to_vector(team.gradient()).any()


@pytest.mark.parametrize("max_norm, weight_decay, count", [
    (None, 0.0, 2), (1e9, 0.1, 2), (0.01, 0.1, 3), (0, 0.0, 2), ("little above", 0.0, 2)])
def test_two_updates_are_those_of_one_process(max_norm, weight_decay, count):
    model, batch, adam = make_model(), make_batch(EXAMPLES), Adam(0.01, weight_decay=weight_decay)
    state = adam.init(model)
    _, gradient = loss_and_gradient(model, batch)
    model, state = adam.update(model, gradient, state)
    with Workers(model, count, state) as team:
        for rate in (None, 0.5):
            team.differentiate(batch)
            gradient = team.gradient()
            if isinstance(max_norm, str):
                max_norm = 1.2 * gradient_norm(named_parameters(gradient))
            if max_norm is not None:
                gradient, norm = clip_gradients(gradient, max_norm)
                assert norm > 0.01
            model, state = adam.update(model, gradient, state, rate)
            assert team.update(adam, rate, max_norm=max_norm) is None
            assert team.optimiser.step == state.step
            assert_same((team.model, team.optimiser.first, team.optimiser.second), (model, state.first, state.second),
                        rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2])
def test_the_gradient_is_a_copy_and_good_for_more_than_one_update(count):
    model, batch, adam = make_model(), make_batch(EXAMPLES), Adam(0.01)
    state, (_, gradient) = adam.init(model), loss_and_gradient(model, batch)
    with Workers(model, count) as team:
        team.differentiate(batch)
        for _ in range(2):
            team.update(adam, max_norm=0.01)
            team.gradient().decoder.norm.shift[:] = 7
            model, state = adam.update(model, clip_gradients(gradient, 0.01)[0], state)
        assert_same(team.gradient(), gradient, rtol=1e-9, atol=1e-12)
        assert_same(team.model, model, rtol=1e-9, atol=1e-12)


def scaled_rows(model, rows, factor):
    return [(row, factor * float(model.decoder.norm.shift[0]), os.getpid()) for row in rows]


def test_rows_are_shared_out_and_come_back_in_their_order(team):
    shift = float(team.model.decoder.norm.shift[0])
    for count in (5, 2, 1, 0):  # with one row the second worker has none
        results = team.share_out(scaled_rows, list(range(count)), 3)
        assert [result[:2] for result in results] == [(row, 3 * shift) for row in range(count)]
        others = {team._processes[0].pid} if count > 1 else set()
        assert {result[2] for result in results} == ({os.getpid()} | others if count else set())


def several(model, rows, times):
    return (row for row in list(rows) * times)


@pytest.mark.parametrize("times, returned", [(0, 0), (2, 6)])
def test_another_number_of_results_than_of_rows_is_refused(team, times, returned):
    with pytest.raises(ValueError, match=f"^several returned {returned} results for 3 rows"):
        team.share_out(several, list("abcde"), times)
    assert team.share_out(several, list("abcde"), 1) == list("abcde")


def refuse(model, rows):
    raise LookupError(f"no {rows[-1]}")


def test_who_fails_at_its_rows_says_so(team):
    with pytest.raises(LookupError, match="no e"):
        team.share_out(refuse, list("abcde"))
    assert len(team.share_out(scaled_rows, [1, 2], 0)) == 2


def test_a_gradient_of_zeros_can_be_clipped():
    with Workers(make_model(), 2) as team:
        team.update(Adam(0.1), max_norm=0)
        assert_same(team.model, make_model())
        assert team.optimiser.step == 1


def test_the_state_given_stays_as_it_was():
    model, batch, adam = make_model(), make_batch(EXAMPLES), Adam(0.1)
    state = adam.init(model)
    with Workers(model, 1, state) as team:
        team.differentiate(batch)
        team.update(adam)
    assert state.step == 0 and not state.first.any() and not state.second.any()
    assert_same(model, make_model())


def test_a_gradient_that_is_not_finite_is_named_and_nothing_is_stepped():
    model = make_model()
    with Workers(model, 2) as team:
        team.differentiate(make_batch(EXAMPLES))
        from_vector(model, team._gradients[1]).decoder.norm.shift[0] = np.nan
        with pytest.raises(ValueError, match="^the gradient of decoder.norm.shift holds nan"):
            team.update(Adam(0.1), max_norm=1.0)
        assert team.optimiser.step == 0 and not team.optimiser.first.any()
        assert_same(team.model, model)


@pytest.mark.parametrize("arguments, message", [
    (dict(max_norm=-1.0), "^max_norm must be a number at least 0"), (dict(learning_rate=-1.0), "^learning_rate must be")])
def test_a_wrong_update_is_refused_and_nothing_is_stepped(team, arguments, message):
    team.differentiate(make_batch(EXAMPLES))
    before = map_tree(np.copy, (team.model, team.optimiser))
    with pytest.raises(ValueError, match=message):
        team.update(Adam(0.1), **arguments)
    assert_same((team.model, team.optimiser.first), (before[0], before[1].first))
    assert team.optimiser.step == 0


def test_a_worker_that_fails_says_so_and_goes_on(team):
    batch = make_batch(EXAMPLES)
    wrong = replace(batch, source=np.full_like(batch.source, 99))
    with pytest.raises(IndexError, match=r"source\[0, 0\] is 99, outside \[0, 10\)"):
        team.differentiate(wrong)
    assert team.differentiate(batch) == pytest.approx(loss_and_gradient(team.model, batch)[0], rel=1e-12)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("row", [0, 1])
def test_one_that_fails_leaves_nothing_behind(count, row):
    """Row 0 is this process's, row 1 the next one's: what the others answered must not be taken for the next answers."""
    batch = make_batch(EXAMPLES)
    source = batch.source.copy()
    source[row] = 99
    with Workers(make_model(), count) as team:
        with pytest.raises(IndexError, match=r"source\[0, 0\] is 99, outside \[0, 10\)"):
            team.differentiate(replace(batch, source=source))
        for batch in (batch, make_batch(EXAMPLES[:2])):
            assert team.differentiate(batch) == pytest.approx(loss_and_gradient(team.model, batch)[0], rel=1e-12)


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("cannot travel")


def test_an_order_that_cannot_be_sent_is_sent_to_nobody():
    batch = make_batch(EXAMPLES)
    with Workers(make_model(), 3) as team:
        with pytest.raises(RuntimeError, match="cannot travel"):
            team._ask("norm", [(), (), (Unpicklable(),)])
        with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
            team.share_out(lambda model, rows: rows, [1, 2, 3])
        assert team.differentiate(batch) == pytest.approx(loss_and_gradient(team.model, batch)[0], rel=1e-12)


def test_a_worker_that_is_killed_is_missed():
    with Workers(make_model(), 2) as workers:
        workers._processes[0].kill()
        workers._processes[0].join()
        with pytest.raises(ChildProcessError, match="^a worker process has ended"):
            workers.differentiate(make_batch(EXAMPLES))


class Secret(Exception):
    def __reduce__(self):
        raise RuntimeError("cannot travel back")


def answer_in_secret(model, rows, raised):
    if "worker two" in rows and raised:
        raise Secret
    return [Secret() if row == "worker two" else row for row in rows]


@pytest.mark.parametrize("raised", [True, False])
def test_an_answer_that_cannot_be_sent_is_an_error_of_its_own(team, raised):
    with pytest.raises(RuntimeError, match="cannot travel back"):
        team.share_out(answer_in_secret, ["worker one", "worker two"], raised)
    assert team.share_out(answer_in_secret, [1, 2], raised) == [1, 2]


class Lost:
    """What no other process can make again."""

    def __reduce__(self):
        return _refuse, (os.getpid(),)


def _refuse(pid):
    if os.getpid() != pid:
        raise LookupError("nobody here knows it")


def test_an_order_that_cannot_be_read_is_an_error_of_its_own(team):
    with pytest.raises(LookupError, match="nobody here knows it"):
        team.share_out(answer_in_secret, [1, 2], Lost())
    assert team.share_out(answer_in_secret, [1, 2], False) == [1, 2]


def test_a_worker_keeps_memory_ignores_ctrl_c_and_ends_with_its_orders(monkeypatch):
    done = []
    monkeypatch.setattr(page, "keep_freed_memory", lambda: done.append("memory"))
    monkeypatch.setattr(page.signal, "signal", lambda *given: done.append(given))

    class Closed:
        def recv(self):
            raise EOFError

    page._work(Closed(), 1, 2, None, "<f8")
    assert done == [(signal.SIGINT, signal.SIG_IGN), "memory"]


class Deadly:
    """Ends the process that unpickles it: a worker, in the middle of an order."""

    def __reduce__(self):
        return os._exit, (1,)


def test_a_worker_that_dies_at_work_is_missed():
    with Workers(make_model(), 2) as workers:
        with pytest.raises(ChildProcessError, match="^a worker process has ended"):
            workers._ask("norm", [(), (Deadly(),)])


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT for one process")
def test_ctrl_c_is_not_for_the_workers():
    batch = make_batch(EXAMPLES)
    with Workers(make_model(), 2) as workers:
        loss = workers.differentiate(batch)
        for process in workers._processes:
            os.kill(process.pid, signal.SIGINT)
        assert workers.differentiate(batch) == loss


def test_an_answer_that_was_not_waited_for_is_not_taken_for_another():
    """Ctrl-C while the workers work: what they answer then would be the answer to the next order."""
    with Workers(make_model(), 2) as workers:
        connection = workers._connections[0]

        class Interrupted:
            send_bytes, close = connection.send_bytes, connection.close

            def recv(self):
                raise KeyboardInterrupt

        workers._connections[0] = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            workers.differentiate(make_batch(EXAMPLES))
        workers._connections[0] = connection
        with pytest.raises(ChildProcessError, match="^a worker process has ended"):
            workers.differentiate(make_batch(EXAMPLES[:2]))
        assert [process.exitcode for process in workers._processes] == [0]


def test_a_script_without_a_guard_ends_with_an_error(tmp_path):
    """Its processes import it again, fail there, and never read the model, here too large to be sent to nobody."""
    script = tmp_path / "script.py"
    script.write_text("import numpy_transformer as nt, numpy as np\n"
                      "config = nt.TransformerConfig(1000, 1000, 64, 4, 256, 1, 1)\n"
                      "with nt.Workers(nt.Transformer.init(np.random.default_rng(0), config), 2):\n"
                      "    print('begun')\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("ChildProcessError: a worker process has ended: there is no answer from it")
    assert 'needs the guard `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


def test_this_process_works_before_it_waits(monkeypatch):
    with Workers(make_model(), 2) as team:
        seen, connection, answer = [], team._connections[0], team._own.answer

        class Watched:
            close = connection.close

            def send_bytes(self, order):
                seen.append("send")
                connection.send_bytes(order)

            def recv(self):
                seen.append("receive")
                return connection.recv()

        team._connections[0] = Watched()
        monkeypatch.setattr(team._own, "answer", lambda *order: (seen.append("work"), answer(*order))[1])
        team.differentiate(make_batch(EXAMPLES))
        assert seen == ["send", "work", "receive"]


def test_workers_end_with_the_block():
    with Workers(make_model(), 2) as workers:
        pass
    assert [process.exitcode for process in workers._processes] == [0]


@pytest.mark.parametrize("cores, count, threads", [
    (1, 1, 1), (1, 2, 1), (3, 2, 1), (4, 2, 2), (9, 2, 4), (9, 3, 3)])
def test_the_cores_are_shared_out_among_the_workers(monkeypatch, cores, count, threads):
    model = make_model()
    monkeypatch.setattr("numpy_transformer.training.workers.cores", lambda: cores)
    worker = _Worker(model, 0, count, bytearray((3 + count) * to_vector(model).nbytes), "<f8")
    assert worker.threads == threads


def test_the_limit_holds_while_the_work_is_done(monkeypatch):
    model, now = make_model(), []
    worker = _Worker(model, 0, 1, bytearray(4 * to_vector(model).nbytes), "<f8")

    @contextmanager
    def limit(most):
        now.append(most)
        yield
        now.clear()

    monkeypatch.setattr("numpy_transformer.training.workers.limit_blas_threads", limit)
    monkeypatch.setattr(worker, "norm", lambda: list(now))
    assert worker.answer("norm", ()) == [worker.threads] and now == []


def test_the_processes_end_with_the_program():
    """Else a program that forgets them would never end."""
    with Workers(make_model(), 2) as workers:
        assert workers._processes[0].daemon


def test_the_same_number_of_workers_gives_the_same_run_bit_for_bit():
    (losses, model), (again, model_again) = run(2), run(2)
    assert losses == again
    for name, array in model.items():
        np.testing.assert_array_equal(array, model_again[name])
    assert run(1)[0] != losses  # other dropout masks


def test_without_dropout_any_number_gives_the_same_run_but_for_rounding():
    (one, model), (two, other) = run(1, dropout_rate=0.0), run(2, dropout_rate=0.0)
    np.testing.assert_allclose(one, two, rtol=1e-4)
    for name, array in model.items():
        if not name.endswith("key.bias"):  # softmax ignores it: its gradient is rounding, which Adam blows up
            np.testing.assert_allclose(other[name], array, rtol=1e-2, atol=1e-3, err_msg=name)


def test_share_scales_loss_and_gradient():
    batch, model = make_batch(EXAMPLES), make_model()
    loss, gradient = loss_and_gradient(model, batch)
    part, part_gradient = loss_and_gradient(model, batch, share=0.25)
    assert part == pytest.approx(loss / 4)
    assert_same(part_gradient, from_vector(gradient, to_vector(gradient) / 4), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_refused(count):
    with pytest.raises(ValueError, match="^count must be a whole number of at least 1"):
        Workers(make_model(), count)


def test_each_worker_has_holes_of_its_own():
    model, batch, seed, expected = make_model(0.5), make_batch(EXAMPLES), (3, 1, 7), 0
    with Workers(model, 2) as team:
        loss = team.differentiate(batch, seed=seed)
    for w in range(2):
        part = Batch(*(rows[w::2] for rows in (batch.source, batch.target_input, batch.target_output)))
        expected += loss_and_gradient(model, part, rng=np.random.default_rng((*seed, w)),
                                      share=part.tokens / batch.tokens)[0]
    assert loss == pytest.approx(expected, rel=1e-9)


def test_without_a_seed_it_is_0():
    with Workers(make_model(0.5), 2) as team:
        batch = make_batch(EXAMPLES)
        assert team.differentiate(batch) == team.differentiate(batch, seed=(0,))


def test_the_loop_gives_the_workers_of_step_s_the_generators_seed_1_s():
    with Workers(make_model(0.2, np.float32), 2) as team:
        batch = next(epoch(EXAMPLES, 3, np.random.default_rng([0, 0, 0])))
        expected = team.differentiate(batch, label_smoothing=0.1, seed=(0, 1, 1))
    assert run(2, steps=1)[0] == [expected]


def test_a_resumed_run_of_workers_is_the_unbroken_run():
    model, losses = make_model(0.3, np.float32), []
    config = TrainingConfig(steps=4, batch_size=3, warmup_steps=5)
    for progress in training_steps(Progress(model, Adam(0.0).init(model)), EXAMPLES, config, 2):
        losses.append(progress.loss)
        if progress.step == 2:
            kept = map_tree(np.copy, progress)
    assert [p.loss for p in training_steps(kept, EXAMPLES, config, 2)] == losses[2:]


def test_weight_decay_is_for_workers_too():
    def table(workers):
        model, config = make_model(), TrainingConfig(steps=3, batch_size=3, warmup_steps=5, weight_decay=0.5)
        *_, last = training_steps(Progress(model, Adam(0.0).init(model)), EXAMPLES, config, workers)
        return last.model.source_embedding.table.copy()

    np.testing.assert_allclose(table(2), table(1), rtol=1e-6, atol=1e-9)
