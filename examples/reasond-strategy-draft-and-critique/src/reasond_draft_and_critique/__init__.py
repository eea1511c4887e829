"""A strategy for reasond that drafts an answer, lets a critic read it, and revises it until the critic is content."""

from reasond_draft_and_critique.strategy import DraftAndCritique, DraftAndCritiqueConfig

__all__ = ["DraftAndCritique", "DraftAndCritiqueConfig"]
