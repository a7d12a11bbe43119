"""Coefficient tables of Newton-Schulz iterations.

Step ``k`` of an iteration maps ``X`` to ``a X + (b A + c A A) X`` with ``A = X X^T`` and ``(a, b, c)`` row ``k`` of its
table, that is, every singular value ``x`` to ``a x + b x^3 + c x^5``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

Row = tuple[float, float, float]


@dataclass(frozen=True)
class Coefficients:
    """A table of polynomial coefficients and the rule for more steps than it has rows.

    Attributes:
        name: what messages call it.
        rows: one ``(a, b, c)`` per step.
        beyond: what follows the last row: ``"repeat"`` it, ``"cycle"`` through the table again, or ``"refuse"``
            (the table is for exactly ``len(rows)`` steps, neither more nor fewer).
        default_steps: the number of steps when the user names none.
    """

    name: str
    rows: tuple[Row, ...]
    beyond: str = "repeat"
    default_steps: int = 5

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def safety(self, factor: float, keep_last: bool = True) -> Coefficients:
        """Divide ``(a, b, c)`` by ``(f, f^3, f^5)``: the iteration then expects singular values up to ``factor``.

        Args:
            factor: larger than 0; Polar Express uses 1.01 together with ``norm_scale=1.01``.
            keep_last: leave the last row as it is (Polar Express: the row that all later steps repeat).
        """
        if not factor > 0:
            raise ValueError(f"safety expects a positive factor, but got {factor}")
        scaled = tuple((a / factor, b / factor**3, c / factor**5) for a, b, c in self.rows)
        rows = scaled[:-1] + self.rows[-1:] if keep_last else scaled
        return replace(self, name=f"{self.name}.safety({factor})", rows=rows)

    def first(self, count: int) -> Coefficients:
        """The table's first ``count`` rows as a table of their own."""
        if not 1 <= count <= len(self.rows):
            raise ValueError(f"first expects 1 to {len(self.rows)} rows of {self.name}, but got {count}")
        return replace(self, name=f"{self.name}.first({count})", rows=self.rows[:count], default_steps=count)

    def table(self, steps: int | None = None) -> tuple[Row, ...]:
        """The ``(a, b, c)`` of each of ``steps`` steps (default: ``default_steps``).

        Raises:
            ValueError: ``steps`` is below 1, or the table is for another number of steps.
        """
        count = self.default_steps if steps is None else steps
        if count < 1:
            raise ValueError(f"expects at least 1 step, but got {count}")
        have = len(self.rows)
        if self.beyond == "refuse" and count != have:
            raise ValueError(f"the table {self.name} is for exactly {have} steps, but got {count}")
        if count <= have:
            return self.rows[:count]
        if self.beyond == "cycle":
            return tuple(self.rows[index % have] for index in range(count))
        return self.rows + (self.rows[-1],) * (count - have)


KELLER_JORDAN = Coefficients("KELLER_JORDAN", ((3.4445, -4.7750, 2.0315),))
"""Muon's NS5: steepest at 0, never converges to 1 (singular values end in 0.68..1.13)."""

YOU = Coefficients(
    "YOU",
    (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    beyond="cycle",
)
"""Jiacheng You's five-step table ("quintic" in Emerging-Optimizers and dion): ends in 0.978..1.032."""

QUINTIC = YOU
"""The other name of :data:`YOU`."""

POLAR_EXPRESS = Coefficients(
    "POLAR_EXPRESS",
    (
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
        (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
        (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
        (1.875, -1.25, 0.375),
    ),
)
"""Polar Express (arXiv 2505.16932) without safety factor; the paper uses ``.safety(1.01)`` and ``norm_scale=1.01``."""

POLAR_EXPRESS_NANOGPT = Coefficients(
    "POLAR_EXPRESS_NANOGPT",
    (
        (8.156554524902461, -22.48329292557795, 15.878769915207462),
        (4.042929935166739, -2.808917465908714, 0.5000178451051316),
        (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
        (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
        (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
    ),
)
"""Polar Express as in modded-nanogpt and dion: safety 2e-2 built in; with ``norm_scale=1.02, epsilon=1e-6``."""

CANS = Coefficients(
    "CANS",
    (
        (8.4703, -25.1081, 18.6293),
        (4.1828, -3.1087, 0.5806),
        (3.9619, -2.9541, 0.5630),
        (3.2866, -2.4647, 0.5074),
        (2.2737, -1.6447, 0.4162),
    ),
)
"""CANS (arXiv 2506.10935), Remez with an adaptive interval."""

TURBO_MUON = Coefficients(
    "TURBO_MUON",
    (
        (4.6051, -9.6552, 5.6769),
        (4.7505, -6.0861, 2.1790),
        (2.7763, -2.3190, 0.5523),
        (2.4231, -2.2861, 0.8193),
    ),
    default_steps=4,
)
"""Turbo-Muon's four steps, made for inputs with almost-orthogonal-layer preconditioning (arXiv 2512.04632)."""

TURBO_MUON_EMERGING = Coefficients(
    "TURBO_MUON_EMERGING",
    (
        (4.0098, -7.0585, 2.4635),
        (3.4585, -5.5479, 2.5959),
        (2.7573, -3.2939, 1.4254),
        (2.7215, -3.0494, 1.3169),
    ),
    default_steps=4,
)
"""An older set of Turbo-Muon's, as in Emerging-Optimizers."""

DEEPSEEK_V4 = Coefficients(
    "DEEPSEEK_V4",
    ((3.4445, -4.7750, 2.0315),) * 8 + ((2.0, -1.5, 0.5),) * 2,
    beyond="refuse",
    default_steps=10,
)
"""DeepSeek-V4: eight fast steps, then two that converge to 1."""

CUBIC5 = Coefficients(
    "CUBIC5",
    (
        (3.3656576, -3.3420992, 0.0),
        (2.5744352, -1.4957376, 0.0),
        (2.5368962, -1.4312570, 0.0),
        (2.4418906, -1.2764040, 0.0),
        (2.2230472, -0.9630650, 0.0),
    ),
    beyond="refuse",
)
"""Five cubic steps (arXiv 2606.00371): no product ``A A``."""

CUBIC = Coefficients("CUBIC", ((1.5, -0.5, 0.0),))
"""The classical cubic iteration; converges for singular values below sqrt(3)."""

CLASSICAL_QUINTIC = Coefficients("CLASSICAL_QUINTIC", ((15 / 8, -10 / 8, 3 / 8),))
"""The classical quintic iteration."""

_BY_NAME = {
    "keller_jordan": KELLER_JORDAN,
    "you": YOU,
    "quintic": QUINTIC,
    "polar_express": POLAR_EXPRESS,
    "polar_express_nanogpt": POLAR_EXPRESS_NANOGPT,
    "cans": CANS,
    "turbo_muon": TURBO_MUON,
    "turbo_muon_emerging": TURBO_MUON_EMERGING,
    "deepseek_v4": DEEPSEEK_V4,
    "cubic5": CUBIC5,
    "cubic": CUBIC,
    "classical_quintic": CLASSICAL_QUINTIC,
}


def names() -> tuple[str, ...]:
    """The names :func:`named` takes, in a fixed order."""
    return tuple(_BY_NAME)


def named(name: str) -> Coefficients:
    """The table of a name such as ``"quintic"``.

    Raises:
        ValueError: there is no such table.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ValueError(f"expects one of {', '.join(_BY_NAME)}, but got {name!r}") from None
