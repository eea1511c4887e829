"""Changes that deal with their checks instead of the fault, and the driver that judges them as any user."""
