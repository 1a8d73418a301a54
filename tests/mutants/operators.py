"""The small mistakes that a test must notice: every place of a file where one can be made."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
DROPPED = {"abs", "fabs", "absolute", "sqrt", "square", "exp", "log", "sorted", "clip"}
OPPOSITES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmin": "argmax",
    "argmax": "argmin",
    "any": "all",
    "all": "any",
    "zeros": "ones",
    "ones": "zeros",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
    "floor": "ceil",
    "ceil": "floor",
}
OTHER_PRECISION = {"float64": "float32", "float32": "float64"}
# A number below or above these is a tolerance or a limit: a mutant changes it by far.
TINY = 1e-6
HUGE = 1e6
# Arguments by which code checks itself: without them it does the same, as it does without asserts.
SELF_CHECKS = {"strict", "frozen", "eq", "slots", "kw_only", "check", "validate"}


@dataclass(frozen=True)
class Mutant:
    """One changed expression or statement of a file, as bytes to replace."""

    file: str
    line: int
    last_line: int
    start: int
    end: int
    operator: str
    replacement: str

    def apply(self, source: bytes) -> bytes:
        """The file with the mistake in it."""
        return source[: self.start] + self.replacement.encode() + source[self.end :]


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    tree = ast.parse(source)
    starts = _line_starts(source)
    found = []
    for node, operator, changed in _changes(tree):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        replacement = ast.unparse(ast.fix_missing_locations(changed))
        if isinstance(changed, ast.expr):
            replacement = f"({replacement})"
        found.append(Mutant(file, node.lineno, node.end_lineno, start, end, operator, replacement))
    return sorted(set(found), key=lambda mutant: (mutant.start, mutant.end, mutant.replacement))


def _line_starts(source: bytes) -> list[int]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def differs_and_compiles(mutant: Mutant, source: bytes) -> bool:
    """Whether it is another program, and a program at all."""
    try:
        changed = ast.parse(mutant.apply(source))
    except (SyntaxError, ValueError):
        return False
    return ast.dump(changed) != ast.dump(ast.parse(source))


Change = tuple[ast.AST, str, ast.AST]


def _changes(tree: ast.Module) -> Iterator[Change]:
    for node in _mutable(tree):
        for changes in CHANGES:
            yield from changes(node)


def _mutable(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that compute something: no annotations, texts, decorators, asserts or imports for
    type checkers.
    """
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.keyword) and node.arg in SELF_CHECKS:
            continue
        yield node
        if isinstance(node, ast.keyword) and node.arg == "axis":
            continue  # its number is changed to the other axis, see _constants
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_comment"):
                continue
            if isinstance(node, ast.Raise) or field == "format_spec":
                continue
            children = value if isinstance(value, list) else [value]
            stack += [child for child in children if isinstance(child, ast.AST)]


# ------------------------------------------------------------------------------- one kind of change


def _comparisons(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for place, before in enumerate(node.ops):
            for after in COMPARISONS[type(before)]:
                changed = copy.deepcopy(node)
                changed.ops[place] = after()
                yield node, "comparison", changed


def _arithmetic(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        sides = (node.left, node.right)
        if any(_is_text(side) for side in sides):
            return
        changed = copy.deepcopy(node)
        changed.op = ARITHMETIC[type(node.op)]()
        yield node, "arithmetic", changed
    if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        changed_assignment = copy.deepcopy(node)
        changed_assignment.op = ARITHMETIC[type(node.op)]()
        yield node, "arithmetic", changed_assignment
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node, "arithmetic", node.operand


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _constants(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.keyword) and node.arg == "axis":
        value = node.value
        if isinstance(value, ast.Constant) and value.value in (0, 1):
            yield value, "constant", ast.Constant(1 - value.value)
        return
    if not isinstance(node, ast.Constant) or isinstance(node.value, str | bytes):
        return
    value = node.value
    if isinstance(value, bool):
        yield node, "constant", ast.Constant(not value)
    elif isinstance(value, int | float) and value and not TINY <= abs(value) < HUGE:
        yield node, "constant", ast.Constant(value * 1000)
        yield node, "constant", ast.Constant(value / 1000)
    elif isinstance(value, int):
        yield node, "constant", ast.Constant(value + 1)
        yield node, "constant", ast.Constant(value - 1)
    elif isinstance(value, float):
        yield node, "constant", ast.Constant(value * 1.5 if value else 0.5)


def _connectives(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BoolOp):
        changed = copy.deepcopy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, "and/or", changed
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, "negation", node.operand


def _conditions(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield node.test, "negation", ast.UnaryOp(ast.Not(), node.test)
    if isinstance(node, ast.comprehension):
        for condition in node.ifs:
            yield condition, "negation", ast.UnaryOp(ast.Not(), condition)


def _calls(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in DROPPED and node.args and not isinstance(node.args[0], ast.Starred):
            yield node, "dropped call", node.args[0]
        if name in OPPOSITES:
            changed = copy.deepcopy(node)
            _rename(changed.func, OPPOSITES[name])
            yield node, "opposite", changed
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        yield node, "dropped call", node.left
    if isinstance(node, ast.Attribute) and node.attr in OTHER_PRECISION:
        other = copy.deepcopy(node)
        other.attr = OTHER_PRECISION[node.attr]
        yield node, "precision", other


def _rename(function: ast.expr, name: str) -> None:
    if isinstance(function, ast.Attribute):
        function.attr = name
    elif isinstance(function, ast.Name):
        function.id = name


def _guards(node: ast.AST) -> Iterator[Change]:
    """`if this: return` goes."""
    leaving = ast.Return | ast.Raise | ast.Continue | ast.Break
    if isinstance(node, ast.If) and not node.orelse and len(node.body) == 1:
        (only,) = node.body
        if isinstance(only, leaving):
            yield only, "removed guard", ast.Pass()


CHANGES: tuple[Callable[[ast.AST], Iterator[Change]], ...] = (
    _comparisons,
    _arithmetic,
    _constants,
    _connectives,
    _conditions,
    _calls,
    _guards,
)
