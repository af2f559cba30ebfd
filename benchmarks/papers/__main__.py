"""`python -m benchmarks.papers [--json]`: every table of the papers that needs none of their hardware."""

from benchmarks.papers.tables import main

main()
