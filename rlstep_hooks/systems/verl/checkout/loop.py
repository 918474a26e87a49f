"""What decides the length and the sizes of a run in a trainer's `fit`, line by line, with the branches that a launch takes.

Only what is known is taken for known. A line that may end a rollout, leave samples out, repeat them or train them again, and that no
reader here understands, is named: the plan then asks.
"""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.batches import added_to, is_made_whole, keeps_whole, leaves_whole
from rlstep_hooks.launch.checkout import UNKNOWN, Line, dotted, value_of
from rlstep_hooks.launch.python_source import shown
from rlstep_hooks.systems.verl.checkout.answers import answers_each_row
from rlstep_hooks.systems.verl.checkout.conditions import given_once, inserted
from rlstep_hooks.systems.verl.checkout.methods import Methods
from rlstep_hooks.systems.verl.checkout.sampling import read_sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from rlstep_hooks.launch.checkout import Function, Source

_STEP = ("global_steps", "global_step")
_GENERATED = "gen_steps"
"""What DAPO's recipe counts up with each generated batch: with each rollout, where no group is filtered."""
_ALL_SAMPLED = "combined_gen_output.slice(0, num_sampled_prompts)"
"""All that was sampled, without the greedy answers of ReMax that were generated with it: verl of 2026, whose copy in
bdsaglam/docvqa-verl has it at verl/trainer/ppo/ray_trainer.py:1478, with the two joined at 1447-1460."""
_GOES_ON = ("is_resuming", "is_resumed", "resuming", "resumed")
_OVER_ALL = ("enumerate", "iter", "tqdm", "tqdm.tqdm")


class Loop(msgspec.Struct, kw_only=True):
    """What was read of a loop."""

    stop: Line | None = None
    """Where `total_training_steps` ends the run; None where nothing does."""
    shortfall: int = 0
    """Rollouts by which that end comes before `total_training_steps`."""
    repeats: dict[str, Line] = {}
    """The factors by which each prompt is repeated: settings, or numbers."""
    unknown: list[Line] = []
    is_read: bool = False
    """Whether the statements of a rollout were read; where they were not, `unknown` says why, and nothing can be said of them."""


def read_loop(
    fit: Function,
    source: Source,
    values: Mapping[str, object],
    known: Collection[str] = (),
    source_at: Callable[[str], Source | None] | None = None,
) -> Loop:
    """What a trainer's `fit` says.

    Args:
        fit: The method.
        source: The file of the trainer.
        values: The settings of the launch and of its configuration, where they are known.
        known: Statements that were read elsewhere, as `ast.unparse` writes them, first lines of `if`, and what a batch is assigned.
        source_at: The file that the trainer imports from a path, as imports have it; None where it is not here.
    """
    reader = _Reader(fit, source, values, known, Methods(source, values, source_at))
    reader.whole(fit)
    return reader.loop


def _names(fit: Function) -> dict[str, str]:
    """Local names that stand for a setting: `n = self.config.actor_rollout_ref.rollout.n`."""
    assigned = (node for node in ast.walk(fit) if isinstance(node, ast.Assign) and len(node.targets) == 1)
    return {
        node.targets[0].id: name
        for node in assigned
        if isinstance(node.targets[0], ast.Name) and (name := dotted(node.value))
    }


def _asked(fit: Function) -> dict[str, set[str]]:
    """The settings that local names are looked up from: `mode = self.config.get("rows.mode", "all")`."""
    assigned = (node for node in ast.walk(fit) if isinstance(node, ast.Assign) and len(node.targets) == 1)
    return {
        node.targets[0].id: {_looked_up(inner) for inner in ast.walk(node.value)} - {""}
        for node in assigned
        if isinstance(node.targets[0], ast.Name)
    }


def _looked_up(node: ast.AST) -> str:
    """The setting that an expression looks up with its default; empty for any other."""
    match node:
        case ast.Call(func=ast.Attribute(value=holder, attr="get"), args=[ast.Constant(value=str() as name), *_]):
            section = "" if ast.unparse(holder) == "self.config" else dotted(holder)
            return f"{section}.{name}" if section else name
    return ""


class _Compared(msgspec.Struct, frozen=True):
    """A comparison of a counter with the total of steps."""

    operator: ast.cmpop
    counter: str
    counted: int
    """Times that the counter was counted up in the rollout by then."""
    line: int


class _Reader:
    def __init__(
        self,
        fit: Function,
        source: Source,
        values: Mapping[str, object],
        known: Collection[str],
        methods: Methods,
    ) -> None:
        self.loop = Loop(repeats={}, unknown=[])
        self._source = source
        self._values = values
        self._names = _names(fit)
        self._asked = _asked(fit)
        self._given = given_once(fit, values)
        self._known = known
        self._methods = methods
        self._started: Counter[str] = Counter()
        """Times that each counter is counted up before the first rollout."""
        self._counted: Counter[str] = Counter()
        """Times that it was counted up in a rollout."""
        self._ends_by = _STEP[0]
        """The counter that ends the run."""
        self._updates = 0
        self._compared: dict[str, _Compared] = {}
        """Names that stand for a comparison with the total."""
        self._trained: set[str] = set()
        self._leaves: dict[str, ast.Break] = {}
        """Names that end the run once the loop over batches was left, each with the line that does."""
        self._assigned: list[tuple[str, ast.expr, int]] = []
        self._changed: list[tuple[str, ast.stmt]] = []
        """Names whose rows a statement may change: it calls a method of theirs, or gives them other tensors."""

    def whole(self, fit: Function) -> None:
        """The whole method: what comes before the loop over epochs, and the loop."""
        loops = [node for node in self._flat(fit.body) if isinstance(node, ast.For | ast.While)]
        # A loop before it may log what a validation gave.
        over_loader = (node for node in loops if any(_is_loader(inner) for inner in ast.walk(node)))
        epochs = next(over_loader, loops[0] if loops else None)
        if not isinstance(epochs, ast.For):
            self._ask(epochs or fit, "there is no loop over epochs")
            return
        self._leaves = _leaves(epochs, fit)
        before = (node for node in self._flat(fit.body) if node.lineno < epochs.lineno)
        self._started.update(counter for node in before if (counter := _counts_up(node)))
        self._epochs(epochs)

    def _epochs(self, epochs: ast.For) -> None:
        if not _is_each_epoch(inserted(self._over(epochs.iter), self._given)):
            self._ask(epochs, f"the run goes over {ast.unparse(epochs.iter)}")
            return
        inner = [node for node in self._flat(epochs.body) if isinstance(node, ast.For | ast.While)]
        if len(inner) != 1 or not isinstance(inner[0], ast.For) or not _is_loader(self._over(inner[0].iter)):
            self._ask(inner[0] if inner else epochs, "an epoch is no loop over train_dataloader")
            return
        self.loop.is_read = True
        self._block(inner[0].body, nested=False, contained=False)
        for node in self._flat(epochs.body):
            is_after = node.lineno > (inner[0].end_lineno or 0)
            if (
                isinstance(node, ast.Break | ast.Return | ast.Continue)
                and is_after
                and node not in self._leaves.values()
            ):
                self._ask(node, f"{ast.unparse(node)} in an epoch")
        for counter in dict.fromkeys((_STEP[0], self._ends_by)):
            started, counted = self._started[counter], self._counted[counter]
            if started != 1 or counted != 1:
                what = "the step" if counter == _STEP[0] else counter
                self._ask(epochs, f"{what} is counted up {started} times before the loop and {counted} times in it")
        if self._updates != 1:
            self._ask(epochs, f"the policy is updated in {self._updates} places")
        self._whole_batch()
        self.loop.unknown += read_sampling(inner[0].body, self._source, self._values)

    def _over(self, node: ast.expr) -> ast.expr:
        """What a loop goes over, where a progress bar or a name of its own stands for it."""
        names = dict(self._given)
        while True:
            if isinstance(node, ast.Name) and node.id in names:
                node = names.pop(node.id)
            elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in _OVER_ALL:
                node = node.args[0]
            else:
                return node

    # Statements.

    def _flat(self, body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
        """The statements of a block and of the branches within it that the launch may take, but not of loops."""
        for node in body:
            yield node
            for inner in self._branches(node):
                yield from self._flat(inner)

    def _branches(self, node: ast.stmt) -> list[list[ast.stmt]]:
        match node:
            case ast.If() if _goes_on(node.test) or self._methods.holds_only_where_a_run_goes_on(node.test):
                return [node.orelse]
            case ast.If():
                holds = value_of(node.test, self._values)
                return [node.body, node.orelse] if holds is UNKNOWN else [node.body if holds else node.orelse]
            case ast.With():
                return [node.body]
            case ast.Try():
                return [node.body, node.orelse, node.finalbody]
        return []

    def _block(self, body: Iterable[ast.stmt], *, nested: bool, contained: bool) -> None:
        """Statements of a rollout.

        Args:
            body: The statements.
            nested: Whether they are within a loop of the rollout's own.
            contained: Whether they are where an exception is caught, which leaves out the rollout that failed.
        """
        for node in body:
            if not self._is_known(node):
                self._statement(node, nested=nested, contained=contained)

    def _is_known(self, node: ast.stmt) -> bool:
        """Whether a statement was read elsewhere: an `if` by its first line, where it does no more than to go on or to end the run."""
        if not self._known or ast.unparse(node).partition("\n")[0] not in self._known:
            return False
        return not isinstance(node, ast.If) or all(map(_only_leaves, (*node.body, *node.orelse)))

    def _statement(self, node: ast.stmt, *, nested: bool, contained: bool) -> None:
        match node:
            case ast.If():
                self._if(node, nested=nested, contained=contained)
            case ast.With():
                self._block(node.body, nested=nested, contained=contained)
            case ast.Try():
                self._block((*node.body, *node.orelse, *node.finalbody), nested=nested, contained=contained)
                for handler in node.handlers:
                    self._block(handler.body, nested=nested, contained=True)
            case ast.For() | ast.While():
                before = self._updates
                self._block(node.body, nested=True, contained=contained)
                if self._updates != before:
                    self._ask(node, "the policy is updated within a loop of a rollout")
            case ast.Break() | ast.Continue():
                if not nested and not contained:
                    self._ask(node, f"{ast.unparse(node)} within a rollout")
            case ast.Return():
                self._ask(node, "the run returns within a rollout")
            case _:
                self._simple(node)

    def _if(self, node: ast.If, *, nested: bool, contained: bool) -> None:
        ends = next((inner for inner in node.body if isinstance(inner, ast.Return | ast.Break)), None)
        compared = self._total(node.test)
        if ends is not None and compared is not None:
            self._stops(node, ends, compared)
            return
        if compared is not None or self._asks_for_last(node.test):
            return  # what is done in the last rollout alone: an evaluation, a checkpoint
        for inner in self._branches(node):
            self._block(inner, nested=nested, contained=contained)

    def _asks_for_last(self, test: ast.expr) -> bool:
        """Whether a condition speaks of the last step, a frequency or a profile: what is done then logs, saves or evaluates."""
        text = ast.unparse(test)
        return any(word in text for word in ("test_freq", "save_freq", "profile", "esi_"))

    def _total(self, test: ast.expr) -> _Compared | None:
        """A comparison of a counter with the total, which stands in the condition or in a name of it.

        What else the condition asks for must hold in this launch.
        """
        if isinstance(test, ast.Name):
            return self._compared.get(test.id)
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            compared = [each for part in test.values if (each := self._total(part)) is not None]
            others = [value_of(part, self._values) for part in test.values if self._total(part) is None]
            return compared[0] if len(compared) == 1 and all(value is True for value in others) else None
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return None
        left, right = ast.unparse(test.left), ast.unparse(test.comparators[0])
        counter = _counter(left)
        if counter and right.endswith("total_training_steps"):
            return _Compared(test.ops[0], counter, self._counted[counter], test.lineno)
        return None

    def _stops(self, node: ast.If, ends: ast.stmt, compared: _Compared) -> None:
        sign = {ast.GtE: ">=", ast.Gt: ">", ast.Eq: "=="}.get(type(compared.operator), "")
        leaves_batches_alone = isinstance(ends, ast.Break) and not any(
            _set_true(each) in self._leaves for each in node.body
        )
        if self.loop.stop is not None or not sign or leaves_batches_alone or not self._updates:
            self._ask(node, f"the run ends at `{ast.unparse(node.test)}`")
            return
        # The k-th rollout ends the run if k - 1 + started + counted is the total (or, with >, one more).
        self._ends_by = compared.counter
        self.loop.shortfall = self._started[compared.counter] + compared.counted - 1 - (sign == ">")
        when = "after the step is counted up" if compared.counted else "before the step is counted up"
        self.loop.stop = Line(
            f"{compared.counter} {sign} total_training_steps, compared {when}", self._source.at(compared.line)
        )
        if self.loop.shortfall not in (0, 1):
            self._ask(node, f"the run ends at `{ast.unparse(node.test)}`")

    def _simple(self, node: ast.stmt) -> None:
        if counter := _counts_up(node):
            self._counted[counter] += 1
            return
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            self._assignment(node)
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name))) as call) if not leaves_whole(
                call
            ):
                self._changed.append((name, node))
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name), attr="batch")], value=tensors):
                if not keeps_whole(tensors):
                    self._changed.append((name, node))
        for call in (inner for inner in ast.walk(node) if isinstance(inner, ast.Call)):
            self._call(call)

    def _assignment(self, node: ast.Assign | ast.AnnAssign) -> None:
        value = node.value
        assert value is not None
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if not isinstance(part, ast.Name):
                    continue
                self._assigned += [(part.id, each, node.lineno) for each in _choices(value)]
                compared = self._total(value)
                if compared is not None:
                    self._compared[part.id] = compared

    def _call(self, call: ast.Call) -> None:
        if not isinstance(call.func, ast.Attribute):
            return
        name, holder = call.func.attr, ast.unparse(call.func.value)
        if name.endswith("update_actor"):
            self._updates += 1
            self._trained |= {argument.id for argument in call.args if isinstance(argument, ast.Name)}
        elif name == "repeat" and "baseline" not in holder and "test" not in holder:
            times = next((word.value for word in call.keywords if word.arg == "repeat_times"), None)
            if times is not None:
                self._repeated(call, times)

    def _repeated(self, call: ast.Call, times: ast.expr) -> None:
        name = self._names.get(times.id, "") if isinstance(times, ast.Name) else dotted(times)
        if not name and isinstance(times, ast.Constant) and isinstance(times.value, int):
            name = str(times.value)
        if not name:
            self._ask(call, f"prompts are repeated {ast.unparse(times)} times")
            return
        self.loop.repeats.setdefault(name, Line(f"each prompt is repeated {name} times", self._source.at(call.lineno)))

    def _whole_batch(self) -> None:
        """Whether what is trained is what was sampled: nothing takes a part of it."""
        names = set(self._trained)
        for _ in self._assigned:
            more = {value.id for name, value, _ in self._assigned if name in names and isinstance(value, ast.Name)}
            if more <= names:
                break
            names |= more
        added = {each for name, value, _ in self._assigned if name in names for each in added_to(value)} - names
        for _ in self._assigned:
            more = {each for name, value, _ in self._assigned if name in added for each in added_to(value)} - names
            more |= {value.id for name, value, _ in self._assigned if name in added and isinstance(value, ast.Name)}
            if more <= added:
                break
            added |= more
        for name, value, line in self._assigned:
            if ast.unparse(value) in (*self._known, _ALL_SAMPLED) or self._methods.gives_back(value):
                continue
            part = not keeps_whole(value) or (self._methods.takes_part(value) and self._is_chosen(value))
            if (name in names and part) or (name in added and not self._is_made_whole(value, names)):
                self.loop.unknown.append(
                    Line(f"`{name} = {shown(value)}` may train a part of it", self._source.at(line))
                )
        for name, node in self._changed:
            if name in names | added:
                self._ask(node, f"`{shown(node)}` may leave a part of it")

    def _is_chosen(self, value: ast.expr) -> bool:
        """Whether the launch chooses what a function does to a batch, or no setting can.

        What it does where its settings are not given, its name says.
        """
        given = value.args if isinstance(value, ast.Call) else []
        settings = {each for name in given if isinstance(name, ast.Name) for each in self._asked.get(name.id, ())}
        return not settings or any(name in self._values for name in settings)

    def _is_made_whole(self, value: ast.expr, names: Collection[str]) -> bool:
        """Whether what is added to a batch has all its rows.

        What a method makes of the batch itself has them, or verl's `union` ends the run (verl 0.7 protocol.py:86).
        """
        if is_made_whole(value) or answers_each_row(value, self._source, self._values):
            return True
        given = value.args if isinstance(value, ast.Call) else []
        is_given = any(isinstance(each, ast.Name) and each.id in names for each in given)
        return is_given and self._methods.leaves_arguments(value)

    def _ask(self, node: ast.AST, says: str) -> None:
        self.loop.unknown.append(Line(says, self._source.at(getattr(node, "lineno", 1))))


def _leaves(epochs: ast.For, fit: Function) -> dict[str, ast.Break]:
    """The names at which a loop over epochs ends, which one line alone makes true: `if training_complete: break`."""
    found = {
        node.test.id: node.body[0]
        for node in epochs.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and isinstance(node.body[0], ast.Break)
    }
    stored = Counter(
        node.id for node in ast.walk(fit) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    true = Counter(map(_set_true, ast.walk(fit)))
    false = Counter(
        ast.unparse(node).removesuffix(" = False") for node in ast.walk(fit) if isinstance(node, ast.Assign)
    )
    return {name: line for name, line in found.items() if true[name] == 1 and stored[name] == 1 + false[name]}


def _set_true(node: ast.AST) -> str:
    """The name that a statement makes true; empty for any other."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=True)):
            return name
    return ""


def _goes_on(test: ast.expr) -> bool:
    """Whether a condition holds in no run but one that goes on from a checkpoint: a run that starts is planned."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return any(ast.unparse(part).rpartition(".")[2] in _GOES_ON for part in parts)


def _choices(value: ast.expr) -> list[ast.expr]:
    """What a name may be given: both of `a if b else c`."""
    return [*_choices(value.body), *_choices(value.orelse)] if isinstance(value, ast.IfExp) else [value]


def _only_leaves(node: ast.stmt) -> bool:
    """Whether a statement logs, counts generated batches or leaves the rollout, and does nothing to a batch."""
    if isinstance(node, ast.Assign | ast.AugAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return ast.unparse(target) in ("self.gen_steps", "is_last_step")
    return isinstance(node, ast.Expr | ast.Continue | ast.Return | ast.Raise)


def _counter(text: str) -> str:
    """The counter that an expression reads: the step under its first name, or generated batches; empty for anything else."""
    name = text.removeprefix("self.")
    return _STEP[0] if name in _STEP else name if name == _GENERATED else ""


def _counts_up(node: ast.stmt) -> str:
    """The counter that a statement counts up."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return _counter(ast.unparse(node.target))
    return ""


def _is_each_epoch(node: ast.expr) -> bool:
    """Whether a loop goes over `range(total_epochs)` or as many numbers from 1 on; a start that has a name is where a run goes on."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "range" or not 1 <= len(node.args) <= 2:
        return False
    end, first = node.args[-1], node.args[0] if len(node.args) == 2 else ast.Constant(0)
    start = first.value if isinstance(first, ast.Constant) else 0
    match end:
        case ast.BinOp(left=end, op=ast.Add(), right=ast.Constant(value=1)):
            return start == 1 and dotted(end) == "trainer.total_epochs"
    return start == 0 and dotted(end) == "trainer.total_epochs"


def _is_loader(node: ast.AST) -> bool:
    """Whether an expression is the whole loader: `islice` and the like may leave batches out."""
    return isinstance(node, ast.Attribute) and node.attr == "train_dataloader"
