"""Rules of conversations: append messages, keep calls with their results, choose windows and count tokens. Pure."""
