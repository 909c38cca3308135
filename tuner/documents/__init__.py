"""YAML in, values out: strict reading, the objective, the study file."""
