"""The kinds of small mistakes that a machine makes in source code, as data: each gives replacements for one node of a syntax tree."""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
REDUCTIONS: dict[str, tuple[str, ...]] = {
    "sum": ("mean", "max"), "mean": ("sum", "max"), "nanmean": ("nansum",), "nansum": ("nanmean",), "std": ("var",),
    "nanstd": ("nanmean",), "min": ("max",), "max": ("min",), "any": ("all",), "all": ("any",), "amin": ("amax",), "amax": ("amin",),
    "minimum": ("maximum",), "maximum": ("minimum",), "argmax": ("argmin",), "floor": ("ceil",), "ceil": ("floor",), "exp": ("exp2",),
    "zeros": ("ones",), "ones": ("zeros",), "zeros_like": ("ones_like",), "ones_like": ("zeros_like",), "cumsum": ("cumprod",),
}  # fmt: skip
"""Functions and methods, and what is taken for them."""
REMOVABLE = frozenset({
    "abs", "clamp", "clip", "clone", "contiguous", "detach", "exp", "flatten", "flip", "float", "log", "masked_fill", "mean",
    "repeat_interleave", "sqrt", "squeeze", "sum", "to", "view",
})  # fmt: skip
"""Methods whose call is left out: `x.clamp(0, 1)` becomes `x`."""
GRADED = ("logps", "log_prob", "log_ratio", "coef", "loss", "_kl", "entrop", "ratio", "logits")
"""Parts of names of what carries a gradient, where one is detached that should not be."""
SAID = frozenset(
    {"warn", "warning", "warning_once", "info", "info_once", "debug", "error", "critical", "print", "warn_once"}
)
"""Functions that only say something."""


def _copied(node: ast.AST, **changes: object) -> ast.AST:
    changed = copy.deepcopy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def arithmetic(node: ast.AST) -> Iterator[ast.AST]:
    """Another operator."""
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield _copied(node, op=ARITHMETIC[type(node.op)]())


def operand(node: ast.AST) -> Iterator[ast.AST]:
    """One side of an operation left out."""
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Mod):
        yield node.left
        yield node.right


def accumulation(node: ast.AST) -> Iterator[ast.AST]:
    """Set where it was added to."""
    if isinstance(node, ast.AugAssign):
        yield ast.Assign(targets=[node.target], value=node.value)


def constant(node: ast.AST) -> Iterator[ast.AST]:
    """Another number, the other truth value."""
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
        yield ast.Constant(node.value - 1)
    elif isinstance(node.value, float):
        yield ast.Constant(2 * node.value if node.value else 1.0)
        yield ast.Constant(0.0 if node.value else -1.0)


def comparison(node: ast.AST) -> Iterator[ast.AST]:
    """Another comparison."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in COMPARISONS[type(node.ops[0])]:
            yield _copied(node, ops=[other()])


def condition(node: ast.AST) -> Iterator[ast.AST]:
    """The condition the other way, or one that always or never holds."""
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield _copied(node, test=ast.UnaryOp(ast.Not(), node.test))
    if isinstance(node, ast.If | ast.IfExp):
        yield _copied(node, test=ast.Constant(True))
        yield _copied(node, test=ast.Constant(False))
    if isinstance(node, ast.BoolOp):
        yield _copied(node, op=ast.And() if isinstance(node.op, ast.Or) else ast.Or())
        for index in range(len(node.values)):
            rest = node.values[:index] + node.values[index + 1 :]
            yield rest[0] if len(rest) == 1 else _copied(node, values=rest)


def sign(node: ast.AST) -> Iterator[ast.AST]:
    """A sign or a negation left out."""
    if isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield node.operand


def statement(node: ast.AST) -> Iterator[ast.AST]:
    """A statement left out, where what follows can run without it."""
    left_out = (
        isinstance(node, ast.AugAssign)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await))
        or (isinstance(node, ast.Assign) and _sets_again(node))
        or isinstance(node, ast.Break | ast.Continue)
    )
    if left_out:
        yield ast.Pass()


def _sets_again(node: ast.Assign) -> bool:
    names = {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
    return all(
        isinstance(target, ast.Attribute | ast.Subscript) or (isinstance(target, ast.Name) and target.id in names)
        for target in node.targets
    )


def loop(node: ast.AST) -> Iterator[ast.AST]:
    """A loop that ends early or goes on."""
    if isinstance(node, ast.Break):
        yield ast.Continue()
    elif isinstance(node, ast.Continue):
        yield ast.Break()


def detached(node: ast.AST) -> Iterator[ast.AST]:
    """No gradient where there should be one."""
    if isinstance(node, ast.BinOp):
        for side in ("left", "right"):
            value = getattr(node, side)
            if isinstance(value, ast.Name | ast.Attribute) and any(part in ast.unparse(value) for part in GRADED):
                call = ast.Call(func=ast.Attribute(value=value, attr="detach", ctx=ast.Load()), args=[], keywords=[])
                yield _copied(node, **{side: call})


def reduction(node: ast.AST) -> Iterator[ast.AST]:
    """A mean for a sum, a maximum for a minimum, and their like."""
    if isinstance(node, ast.Call):
        name = _called(node)
        for other in REDUCTIONS.get(name, ()):
            if isinstance(node.func, ast.Attribute):
                yield _copied(node, func=_copied(node.func, attr=other))
            elif isinstance(node.func, ast.Name):
                yield _copied(node, func=ast.Name(other, ast.Load()))


def call_left_out(node: ast.AST) -> Iterator[ast.AST]:
    """What a method is called on, for what it returns."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REMOVABLE:
        module = isinstance(node.func.value, ast.Name) and node.func.value.id in {"torch", "np", "numpy", "math", "th"}
        if module and node.args:
            yield node.args[0]
        elif not module:
            yield node.func.value


def dimension(node: ast.AST) -> Iterator[ast.AST]:
    """Another dimension."""
    if isinstance(node, ast.keyword) and node.arg in {"dim", "axis"}:
        for other in (0, 1):
            if ast.unparse(node.value) != str(other):
                yield _copied(node, value=ast.Constant(other))


def bound(node: ast.AST) -> Iterator[ast.AST]:
    """A slice without one of its bounds, or one further."""
    if isinstance(node, ast.Slice):
        for side in ("lower", "upper"):
            value = getattr(node, side)
            if value is not None:
                yield _copied(node, **{side: None})
                if not isinstance(value, ast.Constant):
                    yield _copied(node, **{side: ast.BinOp(value, ast.Sub(), ast.Constant(1))})


def argument(node: ast.AST) -> Iterator[ast.AST]:
    """Arguments in another order, or one left to its default."""
    if not isinstance(node, ast.Call):
        return
    for index in range(len(node.args) - 1):
        if not any(isinstance(given, ast.Starred) for given in node.args[index : index + 2]):
            swapped = [*node.args]
            swapped[index], swapped[index + 1] = swapped[index + 1], swapped[index]
            yield _copied(node, args=swapped)
    for index, given in enumerate(node.keywords):
        if given.arg is not None:
            yield _copied(node, keywords=node.keywords[:index] + node.keywords[index + 1 :])


OPERATORS: dict[str, Callable[[ast.AST], Iterator[ast.AST]]] = {
    function.__name__: function
    for function in (
        arithmetic, operand, accumulation, constant, comparison, condition, sign, statement, loop, detached, reduction, call_left_out,
        dimension, bound, argument,
    )
}  # fmt: skip
"""By name."""


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


@dataclass(frozen=True)
class Mutation:
    """One change of one node of a module's syntax tree.

    Attributes:
        module: The module's name.
        function: Qualified name of the outermost function that holds the node.
        line: The node's line.
        node: Its number in the order of `ast.walk`.
        operator: The kind of mistake.
        variant: Which of the operator's replacements.
        before: The node's source.
        after: That of what replaces it.
    """

    module: str
    function: str
    line: int
    node: int
    operator: str
    variant: int
    before: str
    after: str

    @property
    def key(self) -> str:
        """What stays the same when lines move: by this a survivor is known again."""
        return f"{self.module}:{self.function}: {self.before} -> {self.after}"

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.function.rpartition('.')[2]}: {self.before} -> {self.after}"


def mutations(module: str, source: str) -> list[Mutation]:
    """Every change that the operators can make within the functions of a module."""
    tree = ast.parse(source)
    functions = _outermost_functions(tree)
    skipped = {id(node) for node in _not_mutated(tree)}
    found = []
    for number, node in enumerate(ast.walk(tree)):
        function = functions.get(id(node))
        if function is None or id(node) in skipped:
            continue
        before = _text(node)
        seen = {before}
        for name, operator in OPERATORS.items():
            for variant, replacement in enumerate(operator(node)):
                after = _text(replacement)
                if after not in seen:
                    seen.add(after)
                    found.append(
                        Mutation(module, function, node.lineno, number, name, variant, before, after)  # type: ignore[attr-defined]
                    )
    return found


def mutated(source: str, mutation: Mutation) -> ast.Module:
    """The syntax tree of a module with one change in it.

    Raises:
        ValueError: The source is not that of which the mutation was made.
    """
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    node = nodes[mutation.node]
    if _text(node) != mutation.before:
        raise ValueError(f"another source: {_text(node)!r} is not {mutation.before!r}")
    replacement = list(OPERATORS[mutation.operator](node))[mutation.variant]
    if _text(replacement) != mutation.after:
        raise ValueError(f"other operators: {_text(replacement)!r} is not {mutation.after!r}")
    replacement = copy.deepcopy(replacement)
    ast.copy_location(replacement, node)
    for parent in nodes:
        for name, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, name, replacement)
                return ast.fix_missing_locations(tree)
            if isinstance(value, list) and any(entry is node for entry in value):
                setattr(parent, name, [replacement if entry is node else entry for entry in value])
                return ast.fix_missing_locations(tree)
    raise ValueError("the node has no parent")


def _text(node: ast.AST) -> str:
    """Source of a node; of a statement that holds others only its head."""
    if isinstance(node, ast.keyword):
        return f"{node.arg}={ast.unparse(node.value)}"
    text = ast.unparse(ast.fix_missing_locations(copy.deepcopy(node)))
    return text.partition("\n")[0] if isinstance(node, ast.If | ast.While | ast.For | ast.With | ast.Try) else text


def _outermost_functions(tree: ast.Module) -> dict[int, str]:
    """The outermost function that a node is in the body of, by the node's identity."""
    found: dict[int, str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                for statement_of_it in child.body:
                    for inner in ast.walk(statement_of_it):
                        found[id(inner)] = prefix + child.name
            else:
                visit(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)

    visit(tree, "")
    return found


def _not_mutated(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes of what only says something: messages, f-strings, annotations, what is raised; and nodes without a line."""
    for node in ast.walk(tree):
        if not hasattr(node, "lineno"):
            yield node
        whole = (
            isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert)
            or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            or (isinstance(node, ast.Call) and _called(node) in SAID)
            or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _called(node.value) in SAID)
        )
        if whole:
            yield from ast.walk(node)
        for name in ("annotation", "returns"):
            hint = getattr(node, name, None)
            if isinstance(hint, ast.AST):
                yield from ast.walk(hint)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from ast.walk(node.args)
