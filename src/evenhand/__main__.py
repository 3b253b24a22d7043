"""``python -m evenhand`` and ``torchrun -m evenhand`` are the command line."""

from evenhand.cli import main

main()
