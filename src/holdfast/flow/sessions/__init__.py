"""Sessions and what is said in them: opened, said, read, branched, handed over, in and out."""
