"""The records of the event catalogue: one module per family, one Struct per event's facts and content."""
