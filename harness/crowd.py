"""A closed loop whose number of users rises and falls: straight lines between points of (second, users).

User number k, from 0, is there while there are more than k users. One who is to leave ends the request in flight first,
as people do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

Crowd = tuple[tuple[float, float], ...]  # times do not fall; two points at one time are a jump


def users_at(crowd: Crowd, at_s: float) -> float:
    """How many there are; before the first point and after the last one, as there."""
    after = bisect_right([point[0] for point in crowd], at_s)
    if after == 0 or after == len(crowd):
        return crowd[max(0, after - 1)][1]
    (left_s, left), (right_s, right) = crowd[after - 1], crowd[after]
    return left + (right - left) * (at_s - left_s) / (right_s - left_s)


def joins(crowd: Crowd, user: int) -> Iterator[float]:
    """When a user comes; each time it left in between."""
    if crowd[0][1] > user:
        yield 0.0
    for (left_s, left), (right_s, right) in pairwise(crowd):
        if left <= user < right:
            yield left_s + (right_s - left_s) * (user - left) / (right - left)


def mean_users(crowd: Crowd, start_s: float, end_s: float) -> float:
    """The mean number between two times."""
    inside = [point for point in crowd if start_s < point[0] < end_s]
    line = [(start_s, users_at(crowd, start_s)), *inside, (end_s, users_at(crowd, end_s))]
    area = sum((right_s - left_s) * (left + right) / 2 for (left_s, left), (right_s, right) in pairwise(line))
    return area / (end_s - start_s)
