"""Executes the shape comments of a page: `scores = q @ k.T  # (T, S)` is compared with the array of that line.

    report = verify([page], run, letters={"B": 2, "T": 5, "S": 7})

calls `run()` under `sys.settrace` and holds every comment of the pages against what its line did.

A shape is `(B, H, T, S)`, `(D,)` or `()`. `...` stands for any number of axes, a number for itself, and an axis may
be an expression: `(B·T, 3·D)`, `(T + 1, D)`. Prose may follow. Several shapes are separated by commas:
`# (B, T, D), (B, S, D)`. A comment that does not begin with a shape is no shape comment.

A comment is tied to the innermost statement on its line, and means

  assignment, `for`     the target after the line has run; for `x[i] = …` the region x[i]
  return                the value
  call as a statement   its `out=`, else its first argument, else the object whose method is called
  def                   the arguments written on that line, without `self`
  field of a class      that field of every instance that is built

Of several values (tuple targets, a returned tuple, arguments) all arrays share one shape, or there is one shape for
each, in order. In a statement of several lines, a comment inside a tuple means the elements on its line, one on the
first or last line of anything else the whole value, and one between these lines of a call nothing: it is never verified.

A letter has the size that the scenario fixes (unless it frees it for a function or class that takes whatever length it
is given: `free={"split_heads": "T"}`); otherwise that of the function's whole-number variable of this name; otherwise
it is free, and has one size within one call and the nested functions that belong to it. Where the comment that first
met a free letter runs again, in a loop over blocks, it may bring another size, which then holds for the others.

A number has shape (); None, functions and layers have none; lists, tuples and dicts stand for the arrays in them.
A comment that never met an array is not verified. In a docstring `x (B, T)`, `x : (B, T)` and
`x: ndarray of shape (B, T)` mean the argument x (of `__call__`, or the field, if it is a class's), and
`returns y (B, T)` the first array returned.
"""

import ast
import inspect
import io
import re
import sys
import tokenize
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from types import CodeType

import numpy as np

ASSIGNMENT = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For)
BRACKET = r"\((?:[^()]|\([^()]*\))*\)"
LOOKS_LIKE_A_SHAPE = r"\([A-Z]\)|\([^()]*\b[A-Z] *,[^()]*\)"
DOCSTRING = (r"(?P<returns>\b[Rr]eturns? )?(?:\b(?P<name>[a-z]\w*)(?: ?: | of shape | ))?"
             rf"(?:ndarray of shape )?(?P<shape>{BRACKET})")


def parse_shapes(text: str) -> list[tuple]:
    """Return the shapes that the text begins with: tuples of axes, each an expression or `...`."""
    shapes, rest = [], text.lstrip("# ")
    while (match := re.match(BRACKET, rest)) and (shape := _parse_shape(match[0])) is not None:
        shapes.append(shape)
        comma = re.match(r"\s*,\s*(?=\()", rest[match.end():])
        rest = rest[match.end() + comma.end():] if comma else ""
    return shapes


def _parse_shape(bracket: str) -> tuple[str, ...] | None:
    source = re.sub("[·×⋅]", "*", bracket).replace("−", "-").replace("…", "...")
    try:
        tree = ast.parse(re.sub(r"(?<![\w.])(\d+)(?=[A-Za-z])", r"\1*", source), mode="eval").body  # 2D is 2·D
    except SyntaxError:
        return None
    shape = tuple(ast.unparse(node) for node in getattr(tree, "elts", [tree]))
    pieces = [part for axis in getattr(tree, "elts", []) for part in ast.walk(axis)]
    allowed, constants = (ast.Name, ast.Load, ast.BinOp, ast.operator, ast.Constant), (int, type(...))
    right = all(isinstance(part, allowed) and isinstance(getattr(part, "value", 0), constants) for part in pieces)
    return shape if right and shape.count("...") <= 1 and (isinstance(tree, ast.Tuple) or shape == ("...",)) else None


@cache
def _compiled(axis: str):
    """Return an axis as code, with the names in it."""
    code = compile(axis, "<axis>", "eval")
    return code, set(code.co_names)


def unify(shape: tuple, actual: tuple, known: dict[str, int]) -> dict[str, int] | None:
    """Return the free letters that a shape binds when it meets the actual sizes, or None if it does not fit."""
    if "..." in shape:
        head = shape.index("...")
        tail = len(shape) - head - 1
        if len(actual) < head + tail:
            return None
        shape, actual = shape[:head] + shape[head + 1:], actual[:head] + actual[len(actual) - tail:]
    if len(shape) != len(actual):
        return None
    bound = {}
    axes = [(*_compiled(axis), axis.isidentifier(), size) for axis, size in zip(shape, actual)]
    for code, names, plain, size in sorted(axes, key=lambda axis: len(axis[1] - known.keys())):
        unknown = names - known.keys() - bound.keys()
        if len(unknown) > 1:
            return None  # two unknown letters in one axis: nothing would be checked
        values = range(4 * size + 9) if unknown and not plain else [size]
        fitting = [value for value in values
                   if eval(code, {}, {**known, **bound, **dict.fromkeys(unknown, value)}) == size]
        if not fitting:
            return None
        if len(fitting) == 1:
            bound |= dict.fromkeys(unknown, fitting[0])
    return bound


def arrays_in(value) -> list:
    """Return the arrays and numbers in a value."""
    if isinstance(value, (list, tuple, dict)):
        return [a for part in (value.values() if isinstance(value, dict) else value) for a in arrays_in(part)]
    return [value] if isinstance(value, (np.ndarray, np.generic, int, float)) else []


class Letters(dict):
    """The sizes of one call's free letters, with the comments that set them and the letters that a loop set anew."""

    def __init__(self, sizes=()):
        super().__init__(sizes)
        self.setter, self.varying = {}, set()


@dataclass
class Comment:
    """A shape comment, or the shape of one name in a docstring, and what became of it."""

    file: str
    line: int
    text: str
    shapes: list
    tied: bool = False
    verified: int = 0
    wrong: set = field(default_factory=set)

    def compare(self, values: list, fixed: dict, bound: Letters, scope: dict, *, settings: bool = False) -> None:
        """Hold the values against the shapes; with `settings`, plain numbers may stand among the arrays."""
        groups = [arrays_in(value) for value in values]
        filled = [group for group in groups if group]
        arrays = [group for group in filled if any(isinstance(a, np.ndarray) for a in group)]
        if len(self.shapes) == 1:
            pairs = [(self.shapes[0], [a for group in arrays or filled for a in group])]
        elif len(self.shapes) == len(groups) or settings and len(self.shapes) < len(groups):
            pairs = zip(self.shapes, groups)
        elif len(self.shapes) in (len(arrays), len(filled)):
            pairs = zip(self.shapes, arrays if len(self.shapes) == len(arrays) else filled)
        else:
            self.wrong.add(f"{len(self.shapes)} shapes for {len(arrays)} arrays")
            return
        before = {name: bound.pop(name) for name, setter in bound.setter.items() if setter is self}
        whole = {k: v for k, v in scope.items() if isinstance(v, (int, np.integer)) and not isinstance(v, bool)}
        for shape, array in [(shape, array) for shape, group in pairs for array in group]:
            if settings and shape != () and not isinstance(array, np.ndarray):
                continue
            known = {**bound, **whole, **fixed}
            new = unify(shape, np.shape(array), known)
            if new is None:
                names = {name for axis in shape for name in _compiled(axis)[1] & known.keys()}
                sizes = ", ".join(f"{name} = {known[name]}" for name in sorted(names))
                self.wrong.add(f"with {sizes or 'no letters'} the array has shape {np.shape(array)}")
            else:
                bound.update(new)
                bound.setter.update(dict.fromkeys(new, self))
                self.verified += 1
        bound.varying.update(name for name, size in before.items() if bound.setdefault(name, size) != size)


class Page:
    """The shape comments of one source file, by what they are tied to."""

    def __init__(self, module, docstring: str = DOCSTRING):
        self.module, self.file = module, module.__file__
        with open(self.file, encoding="utf-8") as file:
            source = file.read()
        self.by_line, self.owner, self.functions, self.classes = {}, {}, {}, []
        self.on_statement, self.on_return = defaultdict(list), defaultdict(list)  # node → comments
        self.on_call, self.on_instance = defaultdict(list), defaultdict(list)     # node → (comment, names)
        self.comments, self.uncommented = [], {}                                  # (line, name) → shape
        self._visit(ast.parse(source), None)
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and token.line[:token.start[1]].strip():
                self._tie(Comment(self.file, token.start[0], token.string.strip("# "), parse_shapes(token.string)))
        for node in [*self.functions.values(), *self.classes]:
            self._read_docstring(node, docstring)
        self.comments.sort(key=lambda comment: comment.line)

    def _visit(self, node, owner):
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
                continue
            if hasattr(child, "lineno"):
                first = min([child.lineno, *(d.lineno for d in getattr(child, "decorator_list", []))])
                self.by_line |= dict.fromkeys(range(first, child.end_lineno + 1), child)
            self.owner[child] = owner
            if isinstance(child, ast.FunctionDef):
                self.functions[child.name, first] = child
            elif isinstance(child, ast.ClassDef):
                self.classes.append(child)
            self._visit(child, child if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else owner)

    def _tie(self, comment):
        node = self.by_line.get(comment.line)
        owner = self.owner.get(node)
        if not comment.shapes:
            if not re.match(LOOKS_LIKE_A_SHAPE, comment.text):
                return
        elif isinstance(node, ast.FunctionDef):
            names = [a.arg for a in _arguments(node) if a.lineno <= comment.line <= a.end_lineno]
            names = [name for name in names if name not in ("self", "cls")]
            self.on_call[node].append((comment, names))
            comment.tied = bool(names)
        elif isinstance(owner, ast.ClassDef):
            if isinstance(node, ast.AnnAssign):
                self.on_instance[owner].append((comment, node.target.id))
                comment.tied = True
        elif owner and (isinstance(node, (*ASSIGNMENT, ast.Return)) or
                        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            self.on_statement[node].append(comment)
            comment.tied = True
        self.comments.append(comment)

    def _read_docstring(self, node, pattern):
        if len(node.body) == 1:  # nothing but a docstring: the method of a protocol
            return
        text = ast.get_docstring(node, clean=False) or ""
        function, own = node, []
        if isinstance(node, ast.ClassDef):
            function = next((f for f in node.body if getattr(f, "name", "") == "__call__"), None)
            own = [s.target.id for s in node.body if isinstance(s, ast.AnnAssign)]
        arguments = [a.arg for a in _arguments(function)] if function else []
        for match in re.finditer(pattern, text):
            name, returns = match["name"], match["returns"] and function
            prose = not re.search(r"\b[A-Z]\b|\.\.\.|…|\d|\(\)", match["shape"])
            shapes, line = parse_shapes(match["shape"]), node.body[0].lineno + text.count("\n", 0, match.start("shape"))
            if shapes and not prose and (returns or name in arguments + own):
                comment = Comment(self.file, line, " ".join(match[0].split()), shapes, tied=True)
                self.comments.append(comment)
                if returns:
                    self.on_return[function].append(comment)
                elif name in arguments:
                    self.on_call[function].append((comment, [name]))
                else:
                    self.on_instance[node].append((comment, name))


def _arguments(node) -> list[ast.arg]:
    a = node.args
    return [x for x in (*a.posonlyargs, *a.args, a.vararg, *a.kwonlyargs, a.kwarg) if x]


def _read(target, frame):
    """Return what an assignment target holds."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return tuple(_read(part, frame) for part in target.elts)
    if isinstance(target, ast.Starred):
        return _read(target.value, frame)
    if isinstance(target, ast.Name):
        return frame.f_locals.get(target.id)
    try:
        return eval(ast.unparse(target), frame.f_globals, dict(frame.f_locals))
    except Exception:  # no longer there; the comment stays unverified
        return None


def _values_on(line: int, node, value) -> list:
    """Return the values that a comment on `line` speaks of, given the expression (or None) and its value."""
    if isinstance(node, ast.Tuple) and isinstance(value, tuple) and node.lineno != node.end_lineno:
        here = [(part, inner) for part, inner in zip(node.elts, value) if part.lineno <= line <= part.end_lineno]
        if here:
            return [v for part, inner in here for v in _values_on(line, part, inner)]
    if isinstance(node, ast.Call) and node.lineno < line < node.end_lineno:
        return []
    return list(value) if isinstance(value, (tuple, list)) else [value]


class _Call:
    """The trace of one call of a page's function."""

    def __init__(self, tracer, page, node, frame):
        self.tracer, self.page, self.node = tracer, page, node
        self.statement = self.returning = None
        self.fixed, self.bound = tracer.fixed_in(page, node), tracer.inherited(frame)
        told = set()
        for comment, names in page.on_call[node]:
            self.compare(comment, [frame.f_locals.get(name) for name in names], frame, settings=True)
            told.update(names)
        for argument in _arguments(node):
            if isinstance(page.owner[node], ast.FunctionDef) and argument.arg not in told:
                self.note_uncommented(argument, frame.f_locals.get(argument.arg), node.lineno)

    def compare(self, comment, values, frame, **options):
        comment.compare(values, self.fixed, self.bound, frame.f_locals, **options)

    def trace(self, frame, event, value):
        """Local trace function: a statement is finished when the next one begins."""
        if event == "line":
            statement = self.page.by_line.get(frame.f_lineno)
            if statement is not self.statement:
                if isinstance(self.statement, ast.Return):  # its value waits while a with or finally is left
                    self.returning = self.statement
                else:
                    self.finish(frame)
                self.statement = statement
        elif event == "exception":
            self.statement = None
        elif event == "return":
            if self.returning and not isinstance(self.statement, ast.Return):
                self.statement = self.returning
            self.finish(frame, value)
            if isinstance(self.statement, ast.Return):
                arrays = [a for a in arrays_in(value) if isinstance(a, np.ndarray)] or arrays_in(value)
                for comment in self.page.on_return[self.node]:
                    self.compare(comment, arrays[:1], frame)
            self.tracer.returned(frame)
        return self.trace

    def finish(self, frame, value=None):
        """Compare what the statement did with its comments; `value` is what it returns."""
        node, comments = self.statement, self.page.on_statement.get(self.statement, [])
        written = getattr(node, "value", None)
        if isinstance(node, ASSIGNMENT):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            value = _read(target, frame)
            if isinstance(target, ast.Tuple) and not isinstance(written, ast.Tuple):
                written = target
            if not comments and isinstance(node, (ast.Assign, ast.AnnAssign)):
                self.note_uncommented(target, value, node.lineno)
        elif isinstance(node, ast.Return):
            if not comments and not self.page.on_return[self.node]:
                self.note_uncommented(written, value, node.lineno, "return ")
        elif comments:  # a call that is made for what it writes
            out = [k.value for k in written.keywords if k.arg == "out"] or written.args
            value, written = _read(out[0] if out else getattr(written.func, "value", None), frame), None
        for comment in comments:
            self.compare(comment, _values_on(comment.line, written, value), frame)

    def note_uncommented(self, node, value, line, prefix=""):
        """Note an array that an argument or a name receives, or that a return makes, if nothing tells its shape."""
        if isinstance(node, ast.Tuple) and isinstance(value, tuple):
            for part, inner in zip(node.elts, value):
                self.note_uncommented(part, inner, line, prefix)
        elif isinstance(value, np.ndarray) and value.ndim:
            named = isinstance(node, (ast.arg, ast.Name, ast.Attribute, ast.Starred))
            if named != bool(prefix):  # a name that is returned told its shape when it was assigned
                self.page.uncommented[line, prefix + ast.unparse(node)] = value.shape


class _Tracer:
    """The trace of one scenario: dispatches calls, and knows which letters a nested function inherits."""

    def __init__(self, pages, fixed, free):
        self.pages, self.fixed, self.free = {page.file: page for page in pages}, fixed, free
        self.calls, self.parent, self.closed = {}, {}, {}

    def trace(self, frame, event, value):
        page = self.pages.get(frame.f_code.co_filename)
        node = page and page.functions.get((frame.f_code.co_name, frame.f_code.co_firstlineno))
        if not node:
            return None
        if frame not in self.calls:  # a generator is called once and resumed often
            self.calls[frame] = _Call(self, page, node, frame)
        return self.calls[frame].trace

    def fixed_in(self, page, node) -> dict:
        """Return the sizes that hold in a function or class, and in what is nested in it."""
        free = ""
        while node is not None:
            free, node = free + self.free.get(node.name, ""), page.owner[node]
        return {name: size for name, size in self.fixed.items() if name not in free}

    def inherited(self, frame) -> Letters:
        """Return the letters of the enclosing call: one still running, or known by what was closed over."""
        code, outer = frame.f_code, frame.f_back
        self.parent |= {child: code for child in code.co_consts if isinstance(child, CodeType)}
        if code not in self.parent:
            return Letters()
        while outer is not None:
            if outer.f_code is self.parent[code] and outer in self.calls:
                return Letters(self.calls[outer].bound)
            outer = outer.f_back
        sizes, _ = self.closed.get(self._closure(code, frame)[0], ({}, None))
        return Letters(sizes)

    def returned(self, frame):
        """Leave the letters to nested functions; calls that closed over the same things leave what they agree on."""
        bound = self.calls[frame].bound
        settled = {name: size for name, size in bound.items() if name not in bound.varying}
        for child in frame.f_code.co_consts:
            if isinstance(child, CodeType):
                key, values = self._closure(child, frame)
                before, _ = self.closed.get(key, (settled, None))
                self.closed[key] = dict(before.items() & settled.items()), values  # kept values keep their ids
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            del self.calls[frame]

    @staticmethod
    def _closure(code, frame):
        values = [frame.f_locals.get(name) for name in code.co_freevars]
        return (code, *map(id, values)), values

    def run(self, function):
        """Run the scenario: calls are traced, and new instances of the pages' classes looked at."""
        before, original = sys.gettrace(), {}
        for page in self.pages.values():
            for node, comments in page.on_instance.items():
                cls = getattr(page.module, node.name)
                original[cls] = cls.__init__
                cls.__init__ = self._observed(cls.__init__, comments, self.fixed_in(page, node))
        sys.settrace(self.trace)
        try:
            function()
        finally:
            sys.settrace(before)
            for cls, init in original.items():
                cls.__init__ = init

    @staticmethod
    def _observed(init, comments, fixed):
        def __init__(instance, *arguments, **named):
            if init is not object.__init__:  # a named tuple is complete without
                init(instance, *arguments, **named)
            bound = Letters()
            for comment, name in comments:
                comment.compare([getattr(instance, name)], fixed, bound, {}, settings=True)
        return __init__


@dataclass
class Report:
    """What became of every comment, one line `file:line: text` each."""

    pages: list[Page]

    def _list(self, wanted) -> list[str]:
        return [f"{c.file}:{c.line}: {c.text}" + "".join(f"  [{wrong}]" for wrong in sorted(c.wrong))
                for page in self.pages for c in page.comments if wanted(c)]

    verified = property(lambda self: self._list(lambda c: c.verified and not c.wrong))
    mismatched = property(lambda self: self._list(lambda c: c.wrong))
    # Their line never ran, or never held an array.
    unreached = property(lambda self: self._list(lambda c: c.tied and not c.verified and not c.wrong))
    # On a line that assigns, returns and takes nothing, or they look like a shape and are none.
    untied = property(lambda self: self._list(lambda c: not c.tied))

    def uncommented(self, module=None) -> list[str]:
        """Arrays without a shape comment, `file:line: name (its shape)`.

        Reported are names and attributes that are assigned, arguments of nested functions, and arrays made by a return
        (unless the docstring says what it returns). `x[i] = …` and `x += …` keep the shape that x has.
        """
        return [f"{page.file}:{line}: {name} {shape}" for page in self.pages if module in (None, page.module)
                for (line, name), shape in sorted(page.uncommented.items())]


def verify(modules, *runs, letters: dict[str, int] | None = None, docstring: str = DOCSTRING) -> Report:
    """Trace each run over the pages. A run may have `letters`, `free` and `pages` (modules) as attributes."""
    pages = [Page(module, docstring) for module in modules]
    for run in runs:
        traced = [page for page in pages if page.module in getattr(run, "pages", modules)]
        _Tracer(traced, {**(letters or {}), **getattr(run, "letters", {})}, getattr(run, "free", {})).run(run)
    return Report(pages)
