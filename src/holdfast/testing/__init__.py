"""The public test kit: contracts for backends, faults, frozen clocks, the simulated disk."""
