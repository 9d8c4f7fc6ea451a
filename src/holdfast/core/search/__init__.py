"""Search: the words of a query, the texts that can be found, and their order."""
