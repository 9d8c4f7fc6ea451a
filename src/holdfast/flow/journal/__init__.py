"""Operations on the journal as a whole: write to it, read it, verify, transfer and redact it."""
