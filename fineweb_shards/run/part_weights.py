"""The weights of the parts of a mix: any positive numbers become whole ones, and each mistake has its own message."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from fineweb_shards.errors import UsageError
from fineweb_shards.stream.mix import MOST_WEIGHT

Weight = Fraction | int | float


def whole_weights(weights: Sequence[Weight | None]) -> list[int]:
    """Return weights as whole numbers without a common divisor; nothing if not every part has one. Exactly: a float
    from Python counts as what its repr says."""
    given = [Fraction(str(one)) for one in weights if one is not None]
    if not any(given) or len(given) < len(weights):
        return []
    scale = Fraction(math.lcm(*(one.denominator for one in given)))
    scale /= math.gcd(*(int(one * scale) for one in given))
    return [int(one * scale) for one in given]


def check_weights(weights: Mapping[int, Weight | None], whole: Sequence[int], mix_until: str | None) -> None:
    """Raise UsageError for weights that can't work, given by the number of the part, and as whole numbers."""
    given = {number: Fraction(str(one)) for number, one in weights.items() if one is not None}
    if not given:
        if mix_until is not None:
            raise UsageError(
                f"--mix-until {mix_until}: no part has a weight, so nothing is mixed.",
                "Give each part one, such as --part 'dataset=ORG/NAME weight=7', or leave it out.",
            )
        return
    shown = {number: f"--weight {float(one):.12g}" for number, one in given.items()}
    if len(weights) == 1:
        raise UsageError(
            f"{shown[1]}: there is nothing to mix, as the input has only one part.",
            "Name the others, each with its weight, as in --part 'dataset=ORG/NAME weight=3', or leave it out.",
        )
    for number in weights:
        if number not in given:
            first = next(iter(given))
            raise UsageError(
                f"Part {number} has no weight, and part {first} has {shown[first]}.",
                "Give every part a weight, to mix them, or none, to read them one after the other.",
            )
        if given[number] <= 0:
            raise UsageError(
                f"Part {number}: {shown[number]}: must be more than 0.",
                "Leave the part out if you want nothing of it.",
            )
    least, most = min(given, key=given.__getitem__), max(given, key=given.__getitem__)
    if given[most] > MOST_WEIGHT * given[least]:
        raise UsageError(
            f"Part {least}: {shown[least]}: part {most} has more than a million times of it, {shown[most]}.",
            "Choose weights that are closer to each other, or leave the part out.",
        )
    if max(whole) > MOST_WEIGHT:
        raise UsageError(
            f"Part {most}: {shown[most]}: is {max(whole):,} if all weights are whole numbers; at most "
            f"{MOST_WEIGHT:,} is possible.",
            "Round the weights, for example to three digits.",
        )
