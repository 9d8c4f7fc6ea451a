"""Rules of the journal: encode events, chain their hashes, admit batches, fold states and project rows. Pure."""
