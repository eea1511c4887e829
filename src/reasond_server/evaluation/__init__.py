"""What a strategy is worth on given questions: read, asked, graded, compared."""
