"""`python -m steelyard` is the same as `steelyard`."""

from steelyard.cli.main import main

if __name__ == "__main__":
    main()
