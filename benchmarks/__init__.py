"""How fast the book's pages run, and why: `python -m benchmarks --help`.

    foundations, attention, layers, model, training     the operations, one file a part of the book
    step, decode    a whole training step; a whole translation
    pairs           two ways to the same numbers: the faster teaches why the other is slow
    scaling         what grows with length, width and batch, and with which power

    operations      what the operations share: their passes, their work, the check before the clock
    measure         seconds, bytes, and the limits of this machine
    threads         how many BLAS may use, settled before NumPy is imported
    rows            what was measured, kept in a file, and two runs compared
    table           the results as text
    figure, svg     the results as a picture
    duel, side      PyTorch beside NumPy, each in a process of its own
    torch_twin      the same operations in PyTorch: the only file that imports it
    parts, run      the list of the parts, and the order of events
"""
