"""Optuna's door: ask, tell, resume."""

from __future__ import annotations

from tuner.search.search import Proposal, Search, TrialRow, TrialState

__all__ = ["Proposal", "Search", "TrialRow", "TrialState"]
