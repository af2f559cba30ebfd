"""The version of this software, as peers tell it to each other."""

VERSION = "0.1.0"
