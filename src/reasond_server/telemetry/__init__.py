"""What the server tells its operator about itself: logs; never what callers asked or what models wrote."""
