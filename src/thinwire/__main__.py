"""`python -m thinwire`: the command line, also as what torchrun or `thinwire run` starts on each rank."""

from thinwire.cli import main

if __name__ == "__main__":
    main()
