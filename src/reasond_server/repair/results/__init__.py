"""Results of checks: their runs, their reports, the evidence, and the decision of the gate."""
