"""Context packs: what fits, what is shown, why, and again."""
