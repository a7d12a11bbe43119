"""Random valid update functions, as source text of the language, for property tests.

Every statement defines one new variable from earlier ones, so that any prefix is a valid program. Operations are chosen
such that values neither overflow nor leave the domain of a function, whatever they are applied to.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

SHAPES = st.one_of(
    st.sampled_from([(1, 1), (1, 7), (9, 1), (1, 300), (300, 1), (17, 33), (33, 17), (16, 16), (64, 48)]),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
)

FULL, ROW, COLUMN, ONE, LEFT, RIGHT, TURNED = "full", "row", "column", "one", "left", "right", "turned"
"""Shapes of values: MxN, Mx1, 1xN, 1x1, MxM, NxN, NxM."""

_UNARY = [
    "-{a}",
    "kl.abs({a})",
    "kl.sqrt(kl.abs({a}))",
    "kl.rsqrt(kl.abs({a}) + 0.5)",
    "kl.exp(kl.minimum({a}, 1.0))",
    "kl.log(kl.abs({a}) + 1.0)",
    "kl.sign({a})",
    "{a} * lr",
    "{a} + 0.25",
    "{a} / (1.0 + mu)",
    "kl.maximum({a}, -lr)",
    "{a} * {a}",
]
_BINARY = [
    "{a} + {b}",
    "{a} - {b}",
    "{a} * {b}",
    "{a} / (kl.abs({b}) + 1.0)",
    "kl.minimum({a}, {b})",
    "kl.maximum({a}, {b})",
    "kl.lerp({a}, {b}, mu)",
    "kl.lerp({a}, {b}, 0.25)",
    "kl.where({a} > {b}, {a}, 0.5 * {b})",
    "kl.where({a} * {b} >= 0.0, {b}, {a})",
]
_SCALARS = ["lr", "mu", "lr * 0.5 + 0.125", "1 - mu ** kl.step()", "kl.sqrt(mu)", "lr / (1 + kl.step())"]
_ALONG = {"row": ROW, "column": COLUMN, "all": ONE}


@dataclass
class RandomUpdate:
    """A generated update and what is known about it."""

    source: str
    states: list[str]
    """Roles of the states: ``state``, ``row_state``, ``column_state``, ``scalar_state``."""
    has_products: bool
    period: int

    def compile(self) -> Any:
        """The ``kaon.Update``, made as in a notebook cell: from text that :mod:`linecache` knows."""
        filename = f"<random-update-{hash(self.source) & 0xFFFFFFFF:08x}>"
        linecache.cache[filename] = (len(self.source), None, self.source.splitlines(keepends=True), filename)
        namespace: dict[str, Any] = {}
        exec(compile(self.source, filename, "exec"), namespace)
        return namespace["update"]


@dataclass
class _Writer:
    draw: Any
    values: dict[str, list[str]]
    lines: list[str] = field(default_factory=list)
    has_products: bool = False
    period: int = 1
    count: int = 0
    indent: str = "    "

    def define(self, kind: str, expression: str) -> str:
        name = f"v{self.count}"
        self.count += 1
        self.lines.append(f"{self.indent}{name} = {expression}")
        self.values.setdefault(kind, []).append(name)
        return name

    def pick(self, kind: str) -> str:
        return self.draw(st.sampled_from(self.values[kind]))

    def kinds(self, *wanted: str) -> str:
        return self.draw(st.sampled_from([kind for kind in wanted if self.values.get(kind)]))

    def statement(self, nested: bool = False) -> None:
        writers = [self.unary, self.binary, self.reduce, self.normalize, self.product]
        if any(self.values.get(kind) for kind in (ROW, COLUMN, ONE)):
            writers.append(self.broadcast)
        if not nested and self.period == 1:
            writers.append(self.every)
        self.draw(st.sampled_from(writers))()

    def unary(self) -> None:
        kind = self.kinds(FULL, ROW, COLUMN, ONE, LEFT, RIGHT, TURNED)
        self.define(kind, self.draw(st.sampled_from(_UNARY)).format(a=self.pick(kind)))

    def binary(self) -> None:
        kind = self.kinds(FULL, ROW, COLUMN, ONE, LEFT, RIGHT)
        self.define(kind, self.draw(st.sampled_from(_BINARY)).format(a=self.pick(kind), b=self.pick(kind)))

    def broadcast(self) -> None:
        kind = self.kinds(ROW, COLUMN, ONE)
        full = self.kinds(ROW, COLUMN, FULL) if kind == ONE and self.draw(st.booleans()) else FULL
        self.define(full, self.draw(st.sampled_from(_BINARY)).format(a=self.pick(full), b=self.pick(kind)))

    def reduce(self) -> None:
        along = self.draw(st.sampled_from(sorted(_ALONG)))
        function = self.draw(st.sampled_from(["mean", "max", "min", "norm", "sum", "dot"]))
        kind = self.kinds(FULL, TURNED) if along != "all" else self.kinds(FULL, ROW, COLUMN, LEFT)
        operands = self.pick(kind) if function != "dot" else f"{self.pick(kind)}, {self.pick(kind)}"
        result = _ALONG[along]
        if kind == TURNED:
            # One value per row of an NxM matrix is a column of the update's kind once it is turned back.
            result = {ROW: COLUMN, COLUMN: ROW}[result]
            self.define(result, f'kl.{function}({operands}, along="{along}").T')
        else:
            self.define(result, f'kl.{function}({operands}, along="{along}")')

    def normalize(self) -> None:
        kind = self.kinds(FULL, TURNED, LEFT)
        along = self.draw(st.sampled_from(sorted(_ALONG)))
        form = self.draw(st.sampled_from(["max", "add"]))
        self.define(kind, f'kl.normalize({self.pick(kind)}, along="{along}", epsilon=1e-3, form="{form}")')

    def product(self) -> None:
        self.has_products = True
        a = self.pick(FULL)
        choice = self.draw(st.integers(0, 6))
        if choice == 0:
            steps = self.draw(st.integers(1, 3))
            self.define(FULL, f"kl.newton_schulz({a}, steps={steps}, epsilon=1e-3)")
        elif choice == 1:
            self.define(LEFT, f"kl.normalize({a} @ {a}.T, epsilon=1e-3)")
        elif choice == 2:
            self.define(RIGHT, f"kl.normalize({a}.T @ {a}, epsilon=1e-3)")
        elif choice == 3:
            self.define(TURNED, f"{a}.T")
        elif choice == 4:
            x = f"kl.normalize({a}, epsilon=1e-3)"
            polynomial = "(1.5 * x - 0.5 * ((x @ x.T) @ x))" if self.draw(st.booleans()) else "(x @ (x.T @ x))"
            x_name = self.define(FULL, x)
            self.define(FULL, polynomial.replace("x", x_name))
        elif choice == 5 and self.values.get(LEFT):
            left = self.pick(LEFT)
            self.define(FULL, f"{left} @ {a}" if self.draw(st.booleans()) else f"lr * ({left}.T @ {a}) + mu * {a}")
        elif self.values.get(RIGHT):
            self.define(FULL, f"{a} @ {self.pick(RIGHT)}")
        else:
            self.define(LEFT, f"kl.normalize({a} @ {self.pick(FULL)}.T, epsilon=1e-3)")

    def every(self) -> None:
        self.period = self.draw(st.integers(2, 3))
        kind = self.kinds(FULL, ROW, ONE)
        name = f"v{self.count}"
        self.count += 1
        self.lines.append(f"{self.indent}if kl.every({self.period}, phase={self.draw(st.integers(0, 2))}):")
        for branch in range(2):
            if branch:
                self.lines.append(f"{self.indent}else:")
            outer = {key: list(names) for key, names in self.values.items()}
            self.indent += "    "
            for _ in range(self.draw(st.integers(0, 2))):
                self.statement(nested=True)
            self.lines.append(f"{self.indent}{name} = {self.pick(kind)} * {branch + 1}.5")
            self.indent = self.indent[:-4]
            self.values = outer
        self.values[kind].append(name)


@st.composite
def random_updates(draw: Any, max_statements: int = 8) -> RandomUpdate:
    """Updates with one to ``max_statements`` statements and any mixture of states."""
    states = ["m"]
    kinds = {"m": FULL}
    for name, kind in (("r", ROW), ("c", COLUMN), ("s", ONE), ("v", FULL)):
        if draw(st.booleans()):
            states.append(name)
            kinds[name] = kind
    roles = {FULL: "state", ROW: "row_state", COLUMN: "column_state", ONE: "scalar_state"}
    values: dict[str, list[str]] = {FULL: ["w", "g"]}
    for name in states:
        values.setdefault(kinds[name], []).append(name)
    writer = _Writer(draw, values)
    if draw(st.booleans()):
        form = draw(st.sampled_from(["lerp", "heavy_ball"]))
        nesterov = draw(st.booleans())
        writer.lines.append(f'    u, n = kl.momentum(g, m, mu, form="{form}", nesterov={nesterov})')
        values[FULL] += ["u", "n"]
    for _ in range(draw(st.integers(1, max_statements))):
        writer.statement()
    scalar = draw(st.sampled_from(_SCALARS))
    mode = draw(st.sampled_from(["decoupled", "after", "cautious"]))
    update = writer.pick(FULL) if draw(st.booleans()) else writer.values[FULL][-1]
    new_param = draw(
        st.sampled_from(
            [
                f'kl.apply(w, {update}, lr, step_size={scalar}, weight_decay=0.5, mode="{mode}")',
                f"w - ({scalar}) * {update}",
            ]
        )
    )
    results = [new_param]
    for name in states:
        candidate = writer.pick(kinds[name])
        # The language refuses another argument in a state's place, for it is most likely a slip.
        slip = candidate != name and candidate in ("w", "g", *states)
        results.append(f"0.5 * ({name} + {candidate})" if slip else candidate)
    arguments = ["w: kl.param", "g: kl.grad", *(f"{name}: kl.{roles[kinds[name]]}" for name in states)]
    arguments += ["lr: kl.scalar", "mu: kl.scalar"]
    source = "\n".join(
        [
            "import kaon",
            "import kaon.language as kl",
            "",
            "@kaon.update",
            f"def update({', '.join(arguments)}):",
            *writer.lines,
            f"    return {', '.join(results)}",
            "",
        ]
    )
    return RandomUpdate(source, [roles[kinds[name]] for name in states], writer.has_products, writer.period)


_NORMALIZED = [
    "{a} / kl.norm({a})",
    "{a} / kl.max(kl.abs({a}))",
    "{a} * (1.0 / kl.norm({a}))",
    "0.5 * ({a} / kl.mean(kl.abs({a})))",
    "kl.normalize({a})",
    'kl.normalize({a}, along="row")',
    'kl.normalize({a}, along="column")',
    '{a} / (2.0 * kl.max(kl.norm({a}, along="row")))',
]
_MIXED = [
    "{a} + 0.5 * {b}",
    "{a} * kl.norm({b})",
    "{a} * {b}",
    "kl.lerp({a}, {b}, mu)",
    "kl.where(kl.norm({a}) > 0.5 * kl.norm({b}), {a}, {b})",
]
_PRODUCTS = {
    LEFT: ["{a} @ {b}.T", "{l} @ {k}", "kl.normalize({a} @ {b}.T)", "kl.normalize({r} @ {a}.T)"],
    RIGHT: ["{a}.T @ {b}", "kl.normalize({a}.T @ {b})", "kl.normalize({r}.T @ {a})"],
    FULL: [
        "{l} @ {a}",
        "{a} @ {q}",
        "kl.normalize({l} @ {r})",
        "({a} @ {b}.T) @ {a}",
        "1.5 * {a} - 0.5 * (({a} @ {a}.T) @ {a})",
        "kl.newton_schulz({r}, steps=2)",
        "kl.normalize(({r} @ {a}.T) @ {b})",
    ],
}
_SQUARES = {"l": LEFT, "k": LEFT, "q": RIGHT}


@st.composite
def normalized_updates(draw: Any, max_statements: int = 6) -> RandomUpdate:
    """Updates of gradients and momenta of any size: what they change the parameter by does not depend on it.

    Matrices of any size, here ``r``, are the gradient, the momentum and sums of both. All others are made of them by
    dividing by norms, of all elements, rows or columns, and of those by products, sums and single values.
    """
    raw = ["g", "m"]
    sizes: dict[str, list[str]] = {FULL: [], LEFT: [], RIGHT: []}
    lines: list[str] = []

    def define(kind: str, expression: str) -> None:
        sizes[kind].append(f"v{len(lines)}")
        lines.append(f"    v{len(lines)} = {expression}")

    def one(names: list[str]) -> str:
        return str(draw(st.sampled_from(names)))

    if draw(st.booleans()):
        lines.append("    v0 = kl.lerp(m, g, 1 - mu)")
        raw.append("v0")
    for _ in range(draw(st.integers(1, 2))):
        define(FULL, one(_NORMALIZED).format(a=one(raw)))
    has_products = False
    for _ in range(draw(st.integers(2, max_statements))):
        kind = one([FULL, FULL, LEFT, RIGHT])
        names = {"a": one(sizes[FULL]), "b": one(sizes[FULL]), "r": one(raw)}
        names |= {letter: one(sizes[found]) for letter, found in _SQUARES.items() if sizes[found]}
        choices = [text for text in _PRODUCTS[kind] if all(x in names or f"{{{x}}}" not in text for x in _SQUARES)]
        if draw(st.booleans()) and sizes[kind]:
            source = one(raw if kind == FULL and draw(st.booleans()) else sizes[kind])
            mixed = one(_MIXED).format(a=one(sizes[kind]), b=one(sizes[kind]))
            define(kind, mixed if draw(st.booleans()) else one(_NORMALIZED).format(a=source))
        else:
            has_products = True
            define(kind, one(choices).format(**names))
    return RandomUpdate(
        "\n".join(
            [
                "import kaon",
                "import kaon.language as kl",
                "",
                "@kaon.update",
                "def update(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, mu: kl.scalar):",
                *lines,
                f"    return w - lr * {sizes[FULL][-1]}, {one(['kl.lerp(m, g, 1 - mu)', *sizes[FULL]])}",
                "",
            ]
        ),
        ["state"],
        has_products,
        1,
    )
