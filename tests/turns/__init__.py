"""Turns: steps, tools, agents and models, and the kit for testing programs that use them."""
