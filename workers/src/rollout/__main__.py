"""``python -m rollout``: the command line, where the console script is not on the path."""

from rollout.cli.main import main

if __name__ == "__main__":
    main()
