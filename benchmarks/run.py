"""The run: measure the parts that were asked for, print each table as soon as it stands, keep everything."""

import sys
from contextlib import ExitStack

from numpy_transformer.training.memory import keep_freed_memory

from . import duel, figure, measure, pairs, rows, scaling, table
from .operations import CheckError, measure_operations
from .parts import OPERATIONS

TABLES = {"step": table.step_table, "decode": table.decode_table}
OWN_TABLE = (*TABLES, "pairs", "scaling")


def progress(message: str) -> None:
    """Say on stderr what is being measured: one line rewritten on a terminal, plain lines elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{message[:78]:<79}" + "\r" * (not message))
    elif message:
        sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


def run(options) -> int:
    """Measure, print, save, compare and draw; return the exit status."""
    keep_freed_memory()  # as a program that trains does
    setting = measure.Setting(options.quick, options.dtype, options.threads)
    try:
        results, exponents = measure_parts(options, setting)
    except CheckError as error:
        progress("")
        print(f"python -m benchmarks: {error}", file=sys.stderr)
        return 1
    if options.json:
        rows.save(options.json, results)
    if options.compare:
        print(compare(options.compare, options.former, results))
    if options.svg:
        caption = table.head(results.machine, results.limits).splitlines()
        rows.write(options.svg, figure.draw(results.rows, results.limits, exponents, caption))
    return 0


def measure_parts(options, setting: measure.Setting) -> tuple[rows.Results, dict]:
    """Measure part by part, printing each table; return all rows, and the exponents of the scaling tables."""
    machine = measure.machine(setting)
    progress("the limits of this machine")
    results, exponents = rows.Results(machine, measure.measure_limits(setting)), {}
    with ExitStack() as stack:
        duels = None
        if options.torch:
            if duel.installed():
                duels = stack.enter_context(duel.Duels(setting))
                machine["torch"] = duels.version
            else:
                print(duel.INSTALL, file=sys.stderr)
        say(table.head(machine, results.limits))
        for part in options.parts:
            if part == "pairs":
                found, conclusions = pairs.measure_pairs(setting, progress)
                say(table.pair_table(part, found, conclusions))
            elif part == "scaling":
                found = scaling.measure_scaling(setting, progress)
                exponents = scaling.exponents(found)
                say(table.scaling_table(part, found, exponents))
            else:
                found = measure_operations(part, OPERATIONS[part](setting), setting, progress)
                fought = duels.measure(part, progress) if duels else None
                results.duels.extend(fought or [])
                by_pass = {(one.name, one.variant): one for one in fought} if duels else None
                say(TABLES.get(part, table.operation_table)(part, found, results.limits, by_pass))
            results.rows.extend(found)
    kinds = [part if part in OWN_TABLE else "operation" for part in options.parts]
    say(table.footnotes(kinds + ["torch"] * bool(duels)))
    return results, exponents


def say(text: str) -> None:
    progress("")
    print(text, flush=True)


def compare(path, former: rows.Results, results: rows.Results) -> str:
    """Return the table of what changed since a former run."""
    differing = [key for key in ("cpu", "numpy", "blas", "threads", "dtype", "quick")
                 if former.machine.get(key) != results.machine[key]]
    notes = [f"The former run had another {', '.join(differing)}: the ratios say little about the pages."]
    notes = notes * bool(differing)
    for limit, name in (("product", "products"), ("memory", "memory")):
        speed = results.limits[limit] / former.limits[limit]
        if not 0.9 < speed < 1.1:
            notes.append(f"The machine itself has changed: {name} reached {speed:.2f} times the former rate.")
    changes = rows.compare(former.rows, results.rows)
    title = f"compared with {path}, {former.machine.get('date', '')[:16]}"
    return table.comparison_table(title, changes, notes)
