"""Makes a target and an EAGLE-3 draft whose acceptance is real, at the cost of a larger model; see docs/pair.md."""
