"""How checks end: their runs, what reports say, what is evidence and what the gate makes of it."""
