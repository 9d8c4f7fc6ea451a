"""Tools: typed functions that a model may call, the reading of their arguments, and the storing of their results."""
