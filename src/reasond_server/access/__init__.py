"""Who may: tokens are verified here and permissions looked up; knows no transport."""
