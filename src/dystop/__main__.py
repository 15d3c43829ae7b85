"""`python -m dystop` and the `dystop` command."""

from dystop.cli import main

if __name__ == "__main__":
    from dystop.exit_with_parent import exit_with_parent

    exit_with_parent()
    main()
