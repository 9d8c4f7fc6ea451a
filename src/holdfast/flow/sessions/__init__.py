"""Operations on sessions and their threads: open, append, read, branch, import, export, hand over."""
