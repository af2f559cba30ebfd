"""From plan to program to artifacts: build, passes, segments, export; what a program will take."""
