"""The event catalogue's nouns: one module per family, one Struct per event's facts and content."""
