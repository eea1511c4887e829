"""What every task is checked by, whichever kind of work and transport it comes to; knows no transport."""
