"""`python -m reasond_server` is the command `reasond`."""

from reasond_server.cli import main

if __name__ == "__main__":
    main()
