"""Tools: typed functions that a model may call, what they are given and what becomes of what they give."""
