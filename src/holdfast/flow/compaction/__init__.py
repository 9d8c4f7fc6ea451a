"""Conversations and frames made smaller, and the rules that say when."""
