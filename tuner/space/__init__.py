"""The search space: parameters, rules, version guards; ``python -m tuner.space check FILE``."""
